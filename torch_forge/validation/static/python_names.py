"""What names in a Python file stand for: ``F.relu`` is ``torch.nn.functional.relu`` after the usual import."""

from __future__ import annotations

import ast
import builtins


class Names:
    """Imports, simple renamings, and the way from a node to the one around it."""

    def __init__(self, tree: ast.Module) -> None:
        self.foreign: dict[str, str] = {}
        """Name -> full path of what was imported under it. A path stands for itself."""
        self.own: set[str] = set()
        """Functions and classes that the file defines."""
        self._parents: dict[int, ast.AST] = {}
        renamed: list[ast.Assign] = []
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self._parents[id(child)] = node
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".")[0]
                    self.foreign[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.foreign[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.own.add(node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                renamed.append(node)
        for node in renamed:
            for target in node.targets:
                path = self.path(node.value)
                if isinstance(target, ast.Name) and path is not None and (self.root(path) or path in _BUILTINS):
                    self.foreign.setdefault(target.id, path)

    def path(self, node: ast.AST) -> str | None:
        """Full dotted name of what an expression stands for; None if it is not a plain name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return ".".join([self.foreign.get(node.id, node.id), *reversed(parts)])

    def root(self, path: str) -> str | None:
        """The imported module that a path begins with; None if it begins with a name of the file's own."""
        top = path.partition(".")[0]
        return top if any(p.partition(".")[0] == top for p in self.foreign.values()) else None

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around it."""
        return self._parents.get(id(node))


_BUILTINS = frozenset(dir(builtins))
