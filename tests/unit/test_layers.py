"""The table of docs/architecture.md and the house rules, held against every module of the package."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "torch_forge"
MODULES = sorted(PACKAGE.rglob("*.py"))
FACADE = "torch_forge"
"""``torch_forge/__init__.py`` gives out names of the top row, so importing a name from it is importing from there."""
FREE = {"version"}
"""Constants without imports; every part may read them."""
MAX_LINES = 400


def layers() -> dict[str, int]:
    """Part -> layer, as the page says."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    return {
        part: int(number) for number, text in rows for part in re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", text))
    }


LAYER = layers()
TOP = max(LAYER.values())
LAYER[FACADE] = TOP


def name_of(path: Path) -> str:
    """``torch_forge.records.codec`` for its path."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """``records`` for ``torch_forge.records.codec``; the facade for the package itself."""
    return [*module.split("."), FACADE][1]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _runtime_nodes(node: ast.AST) -> list[ast.AST]:
    """Every node that can run: what stands under ``if TYPE_CHECKING`` is for the type checker and couples nothing."""
    found: list[ast.AST] = [node]
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            found += [n for branch in child.orelse for n in _runtime_nodes(branch)]
        else:
            found += _runtime_nodes(child)
    return found


def imports_of(tree: ast.Module, module: str, is_package: bool) -> set[str]:
    """Parts of ours that a module imports, at its top or inside a function."""
    parts: set[str] = set()
    for node in _runtime_nodes(tree):
        if isinstance(node, ast.Import):
            parts |= {part_of(a.name) for a in node.names if a.name.split(".")[0] == "torch_forge"}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")
                base = ".".join([*above[: len(above) - node.level + is_package], *filter(None, [node.module])])
            if base == "torch_forge":
                parts |= {
                    a.name if (PACKAGE / a.name).is_dir() or (PACKAGE / f"{a.name}.py").exists() else FACADE
                    for a in node.names
                }
            elif base.startswith("torch_forge."):
                parts.add(part_of(base))
    return parts


def complaints(part: str, imported: set[str]) -> list[str]:
    """Imports of a part that the table does not allow."""
    wrong = []
    for other in sorted(imported - FREE - {part}):
        if other not in LAYER:
            wrong.append(f"{other} is not in the table of docs/architecture.md")
        elif LAYER[other] > LAYER[part] or (LAYER[other] == LAYER[part] and LAYER[part] < TOP and LAYER[part] > 0):
            wrong.append(f"{part} (layer {LAYER[part]}) imports {other} (layer {LAYER[other]})")
    return wrong


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_downwards(path: Path):
    module = name_of(path)
    part = part_of(module)
    if part not in FREE:
        assert part in LAYER, f"add {part} to the table of docs/architecture.md"
        assert complaints(part, imports_of(tree_of(path), module, path.name == "__init__.py")) == []


@pytest.mark.parametrize(
    "path", [p for p in MODULES if part_of(name_of(p)) in {"records", "errors", "settings", "version"}], ids=name_of
)
def test_the_lowest_layers_know_no_torch(path: Path):
    imported = {a.name.split(".")[0] for n in ast.walk(tree_of(path)) if isinstance(n, ast.Import) for a in n.names}
    imported |= {(n.module or "").split(".")[0] for n in ast.walk(tree_of(path)) if isinstance(n, ast.ImportFrom)}
    assert "torch" not in imported


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_house_rules(path: Path):
    tree, lines = tree_of(path), path.read_text(encoding="utf-8").splitlines()
    wrong = [] if ast.get_docstring(tree) else ["no module docstring"]
    if len(lines) > MAX_LINES:
        wrong.append(f"{len(lines)} lines, more than {MAX_LINES}")
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
            and part_of(name_of(path)) != "cli"
        ):
            wrong.append(f"line {node.lineno}: print() outside cli/")
        if isinstance(node, ast.ExceptHandler) and _is_broad(node) and not _commented(lines, node.lineno):
            wrong.append(f"line {node.lineno}: a broad except without a comment that says why")
    assert wrong == []


def _is_broad(handler: ast.ExceptHandler) -> bool:
    """Catches nearly everything and keeps it: cleaning up and raising again needs no excuse."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(c is None or (isinstance(c, ast.Name) and c.id in {"Exception", "BaseException"}) for c in caught)


def _commented(lines: list[str], lineno: int) -> bool:
    return "#" in lines[lineno - 1] or lines[lineno - 2].lstrip().startswith("#")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch_forge.machine.gpu", {"machine"}),
        ("from torch_forge.records import codec", {"records"}),
        ("from torch_forge import errors, forge", {"errors", FACADE}),
        ("def f():\n    from torch_forge.search import run", {"search"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch_forge.search import run", set()),
        ("from ..records import codec", {"records"}),
        ("from . import other", {"planning"}),
    ],
    ids=["import", "from", "facade", "in a function", "type checking", "relative", "own part"],
)
def test_imports_are_seen(source: str, expected: set[str]):
    assert imports_of(ast.parse(source), "torch_forge.planning.rules", is_package=False) == expected


@pytest.mark.parametrize(
    ("part", "imported", "count"),
    [
        ("planning", "generation", 1),
        ("planning", "records", 0),
        ("records", "settings", 1),
        ("cli", "pipeline", 0),
        ("machine", "nonsense", 1),
    ],
    ids=["stage to stage", "downwards", "upwards", "top row", "unknown part"],
)
def test_the_table_is_enforced(part: str, imported: str, count: int):
    assert len(complaints(part, {imported})) == count
