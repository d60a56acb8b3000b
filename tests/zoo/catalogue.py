"""All tricks and controls, by the names of their files, and the places where they are let loose."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.zoo import controls, scenes, tricks
from tests.zoo.trick import Trick


def _all_of(package: ModuleType) -> dict[str, Trick]:
    names = [m.name for m in pkgutil.iter_modules(package.__path__)]
    return {name: importlib.import_module(f"{package.__name__}.{name}").TRICK for name in names}


TRICKS = _all_of(tricks)
CONTROLS = _all_of(controls)


def module_of(trick: Trick) -> str:
    """Where ``TRICK`` is to be found by another process."""
    package = tricks if trick.name in TRICKS else controls
    return f"{package.__name__}.{trick.name}"


def source_in(trick: Trick, folder: Path) -> str:
    """The source with its places filled in."""
    return trick.source.replace("@DIR@", str(folder)).replace("@PORT@", str(scenes.port()))


@contextmanager
def let_loose(trick: Trick, folder: Path) -> Iterator[Callable[[], bool]]:
    """The surroundings that the trick wants to harm, and the question whether it has; True if it wants no harm."""
    if trick.scene is None:
        yield lambda: True
        return
    with trick.scene(folder) as harmed:
        yield harmed


def params(found: dict[str, Trick], *kinds: str) -> list[Any]:
    """Tricks of these kinds as parameters of a test, marked with what they need."""
    return [pytest.param(t, id=t.name, marks=_marks(t)) for t in found.values() if t.kind in kinds]


def _marks(trick: Trick) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.gpu, pytest.mark.nvcc(direct=True)] if trick.kind == "cu" else [pytest.mark.compiler]
    return marks + ([pytest.mark.slow] if "memory" in trick.needs or trick.timing else [])
