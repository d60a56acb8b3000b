"""Names in code: libraries, the C library's ways out of the kernel, CUDA functions beside the contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch_forge.records.source_text import Kind, SourceText, Token, closing
from torch_forge.validation.static.finding import Finding, names_in
from torch_forge.validation.static.words import LIBRARY_NAMES, LIBRARY_SPACES, WORDS, Word, cuda_call

_NO_TYPES = names_in(
    "return else new throw case goto delete co_return co_yield do and or not if while sizeof"
)  # fmt: skip
_AFTER_NAME = frozenset({"=", ";", ",", ")", "[", "{", ":"})
_AFTER_PARAMETERS = frozenset({"{", "const", "noexcept", "->", ":"})
_ALGORITHMS = frozenset({"remove", "bind", "rename"})
"""``std::`` names that only share their spelling with the C library."""
_TENSOR_MAPS = frozenset({'"cuTensorMapEncodeTiled"', '"cuTensorMapEncodeIm2col"'})
_AS_VALUE = frozenset({"allocation", "synchronises"})


def names(read: SourceText) -> Iterator[Finding]:
    """Findings on words, in code and in macros."""
    macros = {d.tokens[0].text for d in read.directives if d.name == "define" and d.tokens}
    for tokens in (read.code, *(d.tokens for d in read.directives if d.name in {"define", "if", "elif"})):
        for at, token in enumerate(tokens):
            if token.kind is not Kind.WORD or (word := _word(tokens, at)) is None:
                continue
            own = word.common and (token.text in macros or declares(read.code, token.text))
            if not own:
                yield Finding(token.line, word.rule, token.text, word.why, word.rejects)


def declares(tokens: Sequence[Token], name: str) -> bool:
    """Whether the source has a variable, parameter or function body of this name."""
    for at, token in enumerate(tokens):
        if token.text != name or not at or at + 1 == len(tokens):
            continue
        before, after = tokens[at - 1], tokens[at + 1].text
        typed = before.kind is Kind.WORD and before.text not in _NO_TYPES
        if (typed or before.text in {"*", "&", "&&", ">"}) and after in _AFTER_NAME:
            return True
        if before.text in {",", "["} and after in {"=", "]"}:
            return True
        end = closing(tokens, at + 1) if typed or before.text in {"*", "&", ">"} else None
        if end is not None and end + 1 < len(tokens) and tokens[end + 1].text in _AFTER_PARAMETERS:
            return True
    return False


def _word(tokens: Sequence[Token], at: int) -> Word | None:
    """What is wrong with the name at a place, in its surroundings."""
    name = tokens[at].text
    before = tokens[at - 1].text if at else ""
    after = tokens[at + 1].text if at + 1 < len(tokens) else ""
    if before in {".", "->"}:
        return WORDS["detach"] if name == "detach" and after == "(" else None
    qualifier = tokens[at - 2] if before == "::" and at > 1 else None
    named = qualifier is not None and qualifier.kind is Kind.WORD and qualifier.text not in _NO_TYPES
    space = qualifier.text if qualifier is not None and named else ""
    if (
        name in LIBRARY_SPACES
        and (after == "::" or (before in {"namespace", "="} and _in_namespace(tokens, at)))
        and not space
    ):
        return Word("library", LIBRARY_SPACES[name])
    if LIBRARY_NAMES.fullmatch(name):
        return Word("library", "calls a library")
    word = WORDS.get(name)
    if word is not None:
        if word.common and (space not in {"", "std"} or (space == "std" and name in _ALGORITHMS)):
            return None
        return word
    cuda = cuda_call(name)
    if cuda is None or (after not in {"(", "<"} and (cuda.rule not in _AS_VALUE or name.endswith("_t"))):
        return None
    if name.startswith("cudaGetDriverEntryPoint") and {t.text for t in tokens[at + 2 : at + 3]} & _TENSOR_MAPS:
        return Word("contract", "fetches the function that describes tensors to the copy engine", rejects=False)
    return cuda


def _in_namespace(tokens: Sequence[Token], at: int) -> bool:
    """``using namespace X`` and ``namespace a = X``."""
    words = [t.text for t in tokens[max(0, at - 3) : at]]
    return words[-2:] == ["using", "namespace"] or (words[-1:] == ["="] and words[:1] == ["namespace"])
