"""How much of the zoo runs: what needs no clock and fits beside all other tests; with TORCH_FORGE_ZOO=all everything.

The part has every trick that is caught without timing and without gigabytes, once with all gates on and once with none of
its own. Frauds in time need a machine of their own: on a shared one, noise is what stops them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ALL = os.environ.get("TORCH_FORGE_ZOO") == "all"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ALL:
        return
    mine = [i for i in items if i.path.parent == HERE and i.path.name == "test_judged.py" and _trick(i) is not None]
    left_out = [i for i in mine if _costly(_trick(i)) or "gate" in i.callspec.params]
    config.hook.pytest_deselected(items=left_out)
    gone = {id(i) for i in left_out}
    items[:] = [i for i in items if id(i) not in gone]


def _trick(item):
    return getattr(item, "callspec", None) and item.callspec.params.get("trick")


def _costly(trick):
    return trick.timing or "memory" in trick.needs
