"""A program for a test: tune and store on a disk that is full, then make room and go on. Prints JSON.

``python full_disk.py FOLDER``; the folder is a small file system of its own, which this process may fill.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.entries import make_entry, make_files, make_key, make_trial, workload_id
from tests.support.kernels import build, f32, lowered, problem
from torch_forge.caching import upkeep
from torch_forge.caching.entry import Bad
from torch_forge.caching.layers import Cache, Found
from torch_forge.caching.staging import STAGING
from torch_forge.caching.store import DirectoryStore
from torch_forge.errors import ForgeError
from torch_forge.search.forge import forge_problem
from torch_forge.search.workshop import Deadline, Workshop
from torch_forge.settings import Settings

PAGE = 4096
ROOMS = (0, 1, 2, 3, 5, 8, 12)
"""Pages that are left when an entry is stored, which takes about ten."""


class Ballast:
    """A file that takes all of the disk but some pages."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ballast"

    def fill(self, pages: int) -> None:
        self.drop()
        free = os.statvfs(self.path.parent).f_bavail
        with self.path.open("wb") as file:
            file.truncate()
            os.posix_fallocate(file.fileno(), 0, max(1, free - pages) * PAGE)

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


def store(root: Path, ballast: Ballast) -> list[dict[str, Any]]:
    """An entry with less and less room: kept for this process at least, whole or not at all for others."""
    found = []
    for number, pages in enumerate(ROOMS):
        root.mkdir(mode=0o700, exist_ok=True)
        ballast.fill(pages)
        cache = Cache(Settings(cache_dir=root))
        cache.journal(make_key(), workload_id(number)).append(make_trial(number))
        cache.put(make_entry(workload_id(number)), make_files("x" * 3 * PAGE))
        here = isinstance(cache.find(make_key(), workload_id(number)), Found)
        ballast.drop()
        there = isinstance(Cache(Settings(cache_dir=root)).find(make_key(), workload_id(number)), Found)
        damaged = [d.name for d in upkeep.verify(DirectoryStore(root), quarantine=False)[0]]
        staging = os.listdir(root / STAGING) if (root / STAGING).exists() else []
        found.append({"pages": pages, "here": here, "there": there, "damaged": damaged, "staging": staging})
    return found


def forge(root: Path, ballast: Ballast) -> dict[str, Any]:
    """A tuning run without room from the beginning, one whose room is gone when it builds, then one with room."""
    settings = Settings.resolve({}, cache_dir=root, peers="eager")
    of = problem(lambda x: x * 2 + 1, f32(16, 64), name="full")
    ballast.fill(4)
    told = [refusal(lambda: run(settings, of))]
    ballast.drop()
    told.append(refusal(lambda: run(settings, of, before=lambda: ballast.fill(4))))
    entries = [repr(located.entry)[-1500:] for located in upkeep.walk(DirectoryStore(root))]
    ballast.drop()
    run(settings, of)
    after = [located.entry for located in upkeep.walk(DirectoryStore(root))]
    decided = [entry.workload for entry in after if not isinstance(entry, Bad) and entry.result.verdict != "failed"]
    return {"told": told, "entries": entries, "after": decided == [of.workload]}


def judge(ballast: Ballast, settings: Settings) -> str:
    """A right kernel judged without room for its results."""
    from torch_forge.validation.judge import Judge

    of = problem(lambda x: x * 1, f32(512, 512), name="copy")
    built = build("memcpy(OUT(0), IN(0), count(in[0]) * 4);", of)
    with Workshop.open("cpu", settings) as shop:
        shop.pool.sandbox_report()
        court = Judge(of, lowered=lowered(of), device=shop.device, pool=shop.pool, settings=settings, seed=1)
        ballast.fill(64)
        try:
            return refusal(lambda: court.check(built))
        finally:
            ballast.drop()


def run(settings: Settings, of: Any, before: Callable[[], None] | None = None) -> str:
    """Tune; what the workshop has to say. before: done when the compilers have been tried."""
    with Workshop.open("cpu", settings) as shop:
        if before is not None:
            shop.can_build()
            before()
        forge_problem(of, lowered(of), shop, deadline=Deadline.after(300), against_inductor=False)
        return "\n".join(shop.notes)


def refusal(action: Callable[[], object]) -> str:
    try:
        return f"nothing: {action()}"
    except ForgeError as error:
        return error.explain()


def main() -> None:
    folder = Path(sys.argv[1])
    logging.disable()
    ballast = Ballast(folder)
    stored = store(folder / "stored", ballast)
    build("memcpy(OUT(0), IN(0), count(in[0]) * 4);", problem(lambda x: x * 1, f32(512, 512), name="copy"))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    settings = Settings.resolve({}, cache_dir=folder / "judged")
    judged = judge(ballast, settings)
    found = {"stored": stored, "judged": judged, "forged": forge(folder / "forged", ballast)}
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
