"""The gate "source" for Python candidates: a file with a Triton kernel or a ``ModelNew`` class, read as a syntax tree.

Which operators of torch run is the business of the gate "own work", which sees them run; here their names are notes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from torch_forge.validation.static.finding import Finding, rejecting, shown, tidy
from torch_forge.validation.static.lexical import INVISIBLE
from torch_forge.validation.static.python_names import Names
from torch_forge.validation.static.python_words import (
    BUILD_SETTINGS,
    CALLS,
    COMPUTES,
    HARMLESS_OS,
    INNARDS,
    KNOWN,
    MODULES,
    PARTS,
    SOFT_INNARDS,
)
from torch_forge.validation.static.source import source_findings

_COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_NATIVE = re.compile(r"#\s*include|__global__|__device__|\bextern\s+\"C\"|PYBIND11_MODULE|\.reg\s|\basm\b")
_PATHS = re.compile(r"^/(?:proc|etc|dev|sys|home|root|tmp|var)/")
_OPERATORS = ("torch.nn.functional.", "torch.special.", "torch.linalg.", "torch.fft.", "torch.ops.aten.")
_CHANGES = "changes what others call"


def python_findings(text: str) -> list[Finding]:
    """What a Python candidate contains that it has no reason to contain. Nothing of it is run."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [Finding(0, "syntax", type(error).__name__, f"is not Python: {error}")]
    names = Names(tree)
    found = list(_written(text))
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                found += _imported(node)
            case ast.Call():
                found += _called(node, names)
            case ast.Attribute():
                found += _attribute(node, names)
            case ast.Name():
                found += _name(node, names)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.Delete() | ast.For() | ast.With():
                found += _stored(node, names)
            case ast.ClassDef():
                found += _class(node, names)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found += _function(node, names)
            case ast.Constant(value=str()):
                found += _literal(node)
    return tidy(found)


def python_reasons(text: str) -> list[str]:
    """Why a Python candidate is refused, one line each; empty if it is not."""
    return [str(f) for f in rejecting(python_findings(text))]


def _written(text: str) -> Iterator[Finding]:
    """Text that reads as one thing and runs as another."""
    for number, line in enumerate(text.split("\n")[:2], 1):
        cookie = _COOKIE.match(line)
        if cookie and cookie[1].lower().replace("_", "-") not in {"utf-8", "utf8", "ascii", "us-ascii"}:
            yield Finding(
                number, "disguise", cookie[1], "is another encoding, so that the file reads differently when it runs"
            )
    if match := INVISIBLE.search(text):
        line_number = text.count("\n", 0, match.start()) + 1
        yield Finding(line_number, "disguise", "invisible character", "makes the text read differently from what is run")


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
    modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    for module in modules:
        top = module.split(".")[0]
        if isinstance(node, ast.ImportFrom) and node.level:
            yield Finding(node.lineno, "import", "." * node.level + module, "is beside this file; a candidate is one file")
        elif top in MODULES:
            rule, why, rejects = MODULES[top]
            yield Finding(node.lineno, rule, f"import {module}", why, rejects)
        elif top not in KNOWN:
            yield Finding(node.lineno, "import", f"import {module}", "is not a module that kernels need", rejects=False)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*" and top not in {"typing", "math"}:
                    yield Finding(node.lineno, "import", f"from {module} import *", "hides names", rejects=False)
                yield from _part(f"{module}.{alias.name}", node.lineno)


def _part(path: str, line: int) -> Iterator[Finding]:
    """A module's attribute, by full name."""
    if path in PARTS:
        rule, why, rejects = PARTS[path]
        yield Finding(line, rule, path, why, rejects)
    elif path.startswith("os.") and ".".join(path.split(".")[:2]) not in {*HARMLESS_OS, "os.environ", "os.getenv"}:
        yield Finding(line, "processes", path, "touches the system")


def _called(node: ast.Call, names: Names) -> Iterator[Finding]:
    path = names.path(node.func)
    if path is None:
        return
    if path in CALLS:
        rule, why, rejects = CALLS[path]
        yield Finding(node.lineno, rule, path, why, rejects)
    elif path in {"getattr", "setattr", "delattr", "hasattr"} and len(node.args) > 1:
        yield from _by_name(node, path, names)
    elif path == "torch.library.Library" and [a.value for a in node.args[:1] if isinstance(a, ast.Constant)] == ["aten"]:
        yield Finding(node.lineno, "patching", "torch.library.Library", _CHANGES)


def _by_name(node: ast.Call, path: str, names: Names) -> Iterator[Finding]:
    name, owner = node.args[1], names.path(node.args[0])
    if path in {"setattr", "delattr"} and owner in names.foreign:
        yield Finding(node.lineno, "patching", shown(ast.unparse(node)), _CHANGES)
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        yield from _part(f"{owner}.{name.value}", node.lineno)
        if name.value in INNARDS:
            yield Finding(node.lineno, "inside", name.value, "reaches what it was not given", name.value not in SOFT_INNARDS)
    elif isinstance(name, ast.Name | ast.Attribute):
        yield Finding(node.lineno, "built name", shown(ast.unparse(node)), "names what it takes at run time", rejects=False)
    else:
        yield Finding(
            node.lineno, "built name", shown(ast.unparse(node)), "puts a name together, which hides it; write it out"
        )


def _attribute(node: ast.Attribute, names: Names) -> Iterator[Finding]:
    path = names.path(node)
    if path:
        yield from _part(path, node.lineno)
    if path in {"os.environ", "os.getenv"}:
        yield from _environment(node, names)
    elif node.attr in INNARDS:
        yield Finding(node.lineno, "inside", node.attr, "reaches what it was not given", node.attr not in SOFT_INNARDS)


def _environment(node: ast.Attribute, names: Names) -> Iterator[Finding]:
    parent = names.parent(node)
    key = parent.slice if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store) else None
    if isinstance(parent, ast.Attribute) and parent.attr == "setdefault":
        call = names.parent(parent)
        key = call.args[0] if isinstance(call, ast.Call) and call.args else None
    own = isinstance(key, ast.Constant) and key.value in BUILD_SETTINGS
    why = "sets the environment of its own build" if own else "reads or changes the environment"
    yield Finding(node.lineno, "environment", "os.environ", why, rejects=not own)


def _name(node: ast.Name, names: Names) -> Iterator[Finding]:
    if node.id in {"__builtins__", "__loader__", "__spec__"}:
        yield Finding(node.lineno, "inside", node.id, "reaches what it was not given")
    elif node.id in CALLS and isinstance(node.ctx, ast.Load) and node.id not in names.own:
        parent = names.parent(node)
        rule, why, rejects = CALLS[node.id]
        if rejects and not (isinstance(parent, ast.Call) and parent.func is node):
            yield Finding(node.lineno, rule, node.id, why)


def _stored(node: ast.stmt, names: Names) -> Iterator[Finding]:
    """Assignments to parts of modules."""
    for target in ast.walk(node):
        if not isinstance(target, ast.Attribute | ast.Subscript) or not isinstance(target.ctx, ast.Store | ast.Del):
            continue
        owner = target.value
        path = names.path(target) if isinstance(target, ast.Attribute) else names.path(owner)
        if path is None or names.root(path) is None:
            continue
        if path.startswith(("torch.backends.", "torch._inductor.config", "torch._dynamo.config")):
            yield Finding(node.lineno, "flags", path, "changes torch's settings for everybody; say it in the kernel")
        elif path != "os.environ":
            yield Finding(node.lineno, "patching", path, _CHANGES)
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr in {"__class__", "__code__", "__dict__"}:
                yield Finding(node.lineno, "patching", target.attr, _CHANGES)


def _class(node: ast.ClassDef, names: Names) -> Iterator[Finding]:
    for base in node.bases:
        path = names.path(base) or ""
        top = path.split(".")[0]
        if path == "torch.Tensor":
            yield Finding(node.lineno, "subclass", node.name, "is a tensor that can put its work off", rejects=False)
        elif names.root(path) is not None and top not in KNOWN:
            yield Finding(node.lineno, "inherits", f"{node.name}({path})", "inherits the computation from elsewhere")
        elif node.name == "ModelNew" and path in names.own:
            yield Finding(node.lineno, "inherits", f"{node.name}({path})", "inherits from another class here", rejects=False)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, names: Names) -> Iterator[Finding]:
    if node.name in INNARDS or node.name in {"__torch_function__", "__torch_dispatch__"}:
        hard = node.name in INNARDS and node.name not in SOFT_INNARDS
        yield Finding(node.lineno, "inside", node.name, "takes part in what others do with its results", hard)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Try):
            for handler in inner.handlers:
                for work in _torch_work(handler, names):
                    what, why = shown(ast.unparse(work.func)), "computes with torch where the kernel fails; let it fail"
                    yield Finding(work.lineno, "fallback", what, why)
    if node.name == "forward":
        for work in _torch_work(node, names):
            what = shown(ast.unparse(work.func))
            yield Finding(work.lineno, "own work", what, "is an operator of torch", rejects=False)


def _torch_work(node: ast.AST, names: Names) -> Iterator[ast.Call]:
    for call in ast.walk(node):
        path = names.path(call.func) if isinstance(call, ast.Call) else None
        if isinstance(call, ast.Call) and path is not None and _computes(path):
            yield call


def _computes(path: str) -> bool:
    return path.startswith(_OPERATORS) or (path.startswith("torch.") and path.rpartition(".")[2] in COMPUTES)


def _literal(node: ast.Constant) -> Iterator[Finding]:
    """Paths, and native code in strings: by the rules for native code, but that it may be bound with torch."""
    text = str(node.value)
    if path := _PATHS.search(text):
        yield Finding(node.lineno, "literal", path[0], "is in a literal; a kernel does not need it")
    if _NATIVE.search(text):
        for finding in source_findings(text, "cuda"):
            bound = finding.rule in {"include", "library"} and "torch" in finding.why
            line = node.lineno + finding.line - 1
            yield replace(finding, line=line, rejects=finding.rejects and not bound)
