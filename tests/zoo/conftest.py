"""How much of the zoo runs: what needs no clock and fits beside all other tests; with TORCH_FORGE_ZOO=all everything.

The part has every trick that is caught without timing, once with all gates on, once with one of its gates alone, once with
none of them. Frauds in time need a machine of their own: on a shared one, noise is what stops them.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

ALL = os.environ.get("TORCH_FORGE_ZOO") == "all"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ALL:
        return
    mine = [i for i in items if i.path.parent == HERE and i.path.name == "test_judged.py" and _trick(i) is not None]
    gates: dict[str, list[pytest.Item]] = {}
    for item in mine:
        if "gate" in item.callspec.params:
            gates.setdefault(_trick(item).name, []).append(item)
    chosen = {id(_one(name, found)) for name, found in gates.items()}
    left_out = [i for i in mine if _trick(i).timing or ("gate" in i.callspec.params and id(i) not in chosen)]
    config.hook.pytest_deselected(items=left_out)
    gone = {id(i) for i in left_out}
    items[:] = [i for i in items if id(i) not in gone]


def _trick(item):
    return getattr(item, "callspec", None) and item.callspec.params.get("trick")


def _one(name: str, found: list[pytest.Item]) -> pytest.Item:
    """Always the same one of a trick's gates, another one for each trick."""
    return found[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(found)]
