"""System calls in machine code, told from bytes that only look like one.

On x86-64 instructions have no fixed length, so a pair of bytes proves nothing: it may lie inside a constant. Only the
lengths of the instructions before it, from the start of its function, tell whether an instruction begins there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

_CALLS = (b"\x0f\x05", b"\x0f\x34", b"\xcd\x80")
"""syscall, sysenter, int 0x80."""
_LEGACY = frozenset(b"\x66\x67\xf2\xf3\xf0\x2e\x36\x3e\x26\x64\x65")
_WITH_BYTE = frozenset(b"\x70\x71\x72\x73\xc2\xc4\xc5\xc6")
"""Second opcode bytes that are followed by a constant of one byte, plain and VEX-coded alike."""
_PLAIN_WITH_BYTE = _WITH_BYTE | frozenset(b"\xa4\xac\xba")
_BARE_TWO = frozenset(b"\x05\x06\x07\x08\x09\x0b\x0e\x30\x31\x32\x33\x34\x35\x37\x77\xa0\xa1\xa2\xa8\xa9\xaa") | frozenset(
    range(0xC8, 0xD0)
)
_UNKNOWN_TWO = frozenset(b"\x04\x0a\x0c\x0f\x24\x25\x26\x27\x36\x39\x3b\x3c\x3d\x3e\x3f\x78\x79\xa6\xa7")
_INVALID = frozenset(b"\x06\x07\x0e\x16\x17\x1e\x1f\x27\x2f\x37\x3f\x60\x61\x82\x9a\xce\xd4\xd5\xd6\xea")
_BYTE_ONE = frozenset((0x6A, 0xA8, 0xCD, 0xEB, *range(0x70, 0x80), *range(0xB0, 0xB8), *range(0xE0, 0xE8)))
_MODRM_ONE = frozenset(b"\x62\x63\x69\x6b\xc0\xc1\xc6\xc7\xd0\xd1\xd2\xd3\xf6\xf7\xfe\xff") | frozenset(
    (*range(0x80, 0x90), *range(0xD8, 0xE0))
)


def system_calls(code: bytes, starts: Sequence[int], machine: str) -> Iterator[tuple[int, bool]]:
    """(offset, whether an instruction begins there) of each system call or what looks like one.

    code: one section; starts: offsets at which functions begin, ascending; machine: ``x64`` or ``AArch64``, else nothing.
    """
    if machine == "AArch64":
        for at in range(0, len(code) - 3, 4):
            if int.from_bytes(code[at : at + 4], "little") & 0xFFE0001F == 0xD4000001:
                yield at, True
    if machine != "x64":
        return
    places = sorted(at for pair in _CALLS for at in _all(code, pair))
    for at in places:
        before = bisect_right(starts, at)
        yield at, _begins(code, starts[before - 1] if before else 0, at)


def _all(code: bytes, pair: bytes) -> Iterator[int]:
    at = code.find(pair)
    while at >= 0:
        yield at
        at = code.find(pair, at + 1)


def _begins(code: bytes, start: int, wanted: int) -> bool:
    """Whether, read from ``start`` on, an instruction's opcode stands at ``wanted``."""
    at = start
    while at <= wanted:
        length = instruction_length(code, at)
        if length is None:
            return False
        if at + length > wanted:
            return all(b in _LEGACY or b & 0xF0 == 0x40 for b in code[at:wanted])
        at += length
    return False


def instruction_length(code: bytes, at: int) -> int | None:
    """Length in bytes of the x86-64 instruction at ``at``; None if it is none that compilers write."""
    try:
        end = _end(code, at)
    except IndexError:
        return None
    return None if end is None or end > len(code) or end - at > 15 else end - at


def _end(code: bytes, at: int) -> int | None:
    wide = False  # REX.W
    short = addresses = False  # operands of 16 bits, addresses of 32
    while code[at] in _LEGACY:
        short |= code[at] == 0x66
        addresses |= code[at] == 0x67
        at += 1
    if code[at] & 0xF0 == 0x40:
        wide = bool(code[at] & 8)
        at += 1
    op = code[at]
    if op in {0xC4, 0xC5, 0x62}:
        return _vector(code, at)
    if op == 0x0F:
        return _two_bytes(code, at + 1)
    constant = 4 if wide or not short else 2
    return _one_byte(code, at, constant, wide=wide, short=short, addresses=addresses)


def _one_byte(code: bytes, at: int, constant: int, *, wide: bool, short: bool, addresses: bool) -> int | None:
    op = code[at]
    at += 1
    if op in _INVALID:
        return None
    if op < 0x40:
        low = op & 7
        return _operand(code, at) if low < 4 else at + 1 if low == 4 else at + constant
    if op in _MODRM_ONE:
        after = _operand(code, at)
        tests = op in {0xF6, 0xF7} and code[at] >> 3 & 7 < 2
        if op in {0x6B, 0x80, 0x83, 0xC0, 0xC1, 0xC6} or (op == 0xF6 and tests):
            return after + 1
        return after + constant if op in {0x69, 0x81, 0xC7} or (op == 0xF7 and tests) else after
    if op in _BYTE_ONE:
        return at + 1
    if op in {0x68, 0xA9}:
        return at + constant
    if op in {0xE8, 0xE9}:
        return at + 4
    if 0xA0 <= op < 0xA4:
        return at + (4 if addresses else 8)
    if 0xB8 <= op < 0xC0:
        return at + (8 if wide else 2 if short else 4)
    return at + {0xC2: 2, 0xCA: 2, 0xC8: 3}.get(op, 0)


def _two_bytes(code: bytes, at: int) -> int | None:
    op = code[at]
    at += 1
    if op == 0x38:
        return _operand(code, at + 1)
    if op == 0x3A:
        return _operand(code, at + 1) + 1
    if op in _BARE_TWO:
        return at
    if 0x80 <= op < 0x90:
        return at + 4
    if op in _UNKNOWN_TWO:
        return None
    return _operand(code, at) + (op in _PLAIN_WITH_BYTE)


def _vector(code: bytes, at: int) -> int | None:
    """VEX and EVEX: a map number says which opcodes follow."""
    if code[at] == 0xC5:
        table, at = 1, at + 2
    elif code[at] == 0xC4:
        table, at = code[at + 1] & 0x1F, at + 3
    else:
        table, at = code[at + 1] & 7, at + 4
    op = code[at]
    if table not in {1, 2, 3, 5, 6}:
        return None
    if table == 1 and op == 0x77:
        return at + 1
    return _operand(code, at + 1) + (table == 3 or (table == 1 and op in _WITH_BYTE))


def _operand(code: bytes, at: int) -> int:
    """Behind a ModRM byte, its SIB byte and its displacement."""
    mode, rest = code[at] >> 6, code[at] & 7
    at += 1
    if mode == 3:
        return at
    if rest == 4:
        rest = code[at] & 7
        at += 1
    return at + (4 if mode == 2 or (mode == 0 and rest == 5) else mode)
