"""A task's own half of its confinement: what is put on when, and what happens if it cannot be.

``enter`` comes first, in every confined task. ``lock_down`` puts on what is left; it is called by ``enter`` itself except in
a task that uses a GPU, which starts CUDA before. ``close_compilers`` takes the last programs away. ``loader`` calls both
before it loads a candidate, so no order of calls in a task can forget them. Outside confined tasks they do nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from torch_forge.machine.sandbox import landlock, limits, namespaces, paths, seccomp
from torch_forge.machine.sandbox.root import SHARED_MEMORY, enter_root
from torch_forge.records.sandbox import (
    FILES,
    IPC,
    LIMITS,
    NETWORK,
    PIDS,
    PRIVILEGES,
    PROC,
    PROCESSES,
    ROOT,
    SECCOMP,
    SIGNALS,
    TCP,
    USER,
    Confinement,
)

EXIT_STATUS = 71
"""Of a task that a layer failed in."""


@dataclass
class _Cell:
    """The confinement of this process."""

    confinement: Confinement
    scratch: str
    tell: Callable[[bool], None]
    """Says whether the cell was locked or could not be, to a side that believes it; once."""
    missing: dict[str, str] = field(default_factory=dict)
    """Layers that failed while exploring, with the reason."""
    locked: bool = False
    bare: bool = False

    @property
    def active(self) -> set[str]:
        """Layers that are to be and have not failed."""
        return set(self.confinement.layers) - set(self.missing)

    def put_on(self, layer: str, action: Callable[[], object]) -> None:
        """If it is to be, and be it the end of this process."""
        if layer not in self.confinement.layers:
            return
        try:
            action()
        except OSError as error:
            if not self.confinement.exploring:
                sys.stderr.write(f"sandbox: {layer}: {error}\n")
                sys.stderr.flush()
                self.tell(False)
                os._exit(EXIT_STATUS)
            self.missing[layer] = error.strerror or str(error)


_cells: list[_Cell] = []
"""None or one."""


def enter(confinement: Confinement, scratch: str, *, cpu_s: int, file_bytes: int, tell: Callable[[bool], None]) -> None:
    """Put on what CUDA can start behind, and the rest if there will be no CUDA. Ends the process if a layer fails."""
    cell = _Cell(confinement, scratch, tell)
    _cells.append(cell)
    cell.put_on(NETWORK, namespaces.enter_network)
    cell.put_on(IPC, namespaces.enter_ipc)
    cell.put_on(ROOT, lambda: _enter_root(cell))
    if ROOT not in cell.active:
        cell.put_on(PROC, lambda: _fail("needs a private root"))
    cell.put_on(PROCESSES, lambda: _bound_processes(cell))
    cell.put_on(LIMITS, lambda: limits.bound_resources(cpu_s, file_bytes))
    cell.put_on(PRIVILEGES, namespaces.drop_privileges)
    if not confinement.cuda:
        lock_down()


def lock_down() -> None:
    """Put on what is left. Before a candidate is loaded, in a process that has started CUDA if it needs it."""
    if not _cells or _cells[0].locked:
        return
    cell = _cells[0]
    cell.locked = True
    cell.put_on(FILES, lambda: landlock.restrict_files(_rules(cell)))
    cell.put_on(TCP, landlock.restrict_tcp)
    cell.put_on(SIGNALS, landlock.restrict_signals)
    cell.put_on(PRIVILEGES, namespaces.forbid_dumps)
    cell.put_on(SECCOMP, lambda: seccomp.install(seccomp.tooled(os.getpid())))
    if not cell.confinement.compilers:
        close_compilers()
    cell.tell(True)


def close_compilers() -> None:
    """From here on no program is started, no process, and no file changed but through an open one."""
    lock_down()
    if _cells and not _cells[0].bare:
        _cells[0].bare = True
        _cells[0].put_on(SECCOMP, lambda: seccomp.install(seccomp.bare(os.getpid())))


def check_locked() -> None:
    """Raises RuntimeError in a confined task that has ended without having locked itself down."""
    if _cells and not _cells[0].locked:
        raise RuntimeError("a confined task never locked itself down")


def missing_layers() -> dict[str, str]:
    """What failed in this process, which explores: layer -> why."""
    return dict(_cells[0].missing) if _cells else {}


def _readable(cell: _Cell) -> tuple[str, ...]:
    return paths.outermost((*paths.toolchain(), *cell.confinement.readable))


def _enter_root(cell: _Cell) -> None:
    layers = cell.confinement.layers
    devices = paths.devices(cuda=cell.confinement.cuda)
    max_pids = limits.MAX_PROCESSES if PROCESSES in layers and _few_pids(cell) else 0
    why = enter_root(cell.scratch, _readable(cell), devices, own_proc=PROC in layers, max_pids=max_pids)
    os.chdir(cell.scratch)
    if why:
        cell.put_on(PROC, lambda: _fail(why))


def _few_pids(cell: _Cell) -> bool:
    """Whether the pid namespace, which must be the task's own, can say how many there may be."""
    return {USER, PIDS, ROOT, PROC} <= cell.active and limits.pids_can_be_few()


def _bound_processes(cell: _Cell) -> None:
    if USER not in cell.active:
        _fail("needs a user namespace, as it would count all other processes of the user too")
    if os.getuid() == 0 and not _few_pids(cell):
        _fail("root is exempt, and there is no private /proc of a kernel from 6.14 on; be an ordinary user")
    limits.bound_processes()


def _fail(why: str) -> NoReturn:
    raise OSError(why)


def _rules(cell: _Cell) -> Sequence[tuple[str, int]]:
    """Path -> rights, for Landlock."""
    runs = landlock.EXECUTE if cell.confinement.compilers else 0
    rules = [(path, landlock.READ | runs) for path in _readable(cell)]
    rules += [(path, landlock.DEVICE) for path in paths.devices(cuda=cell.confinement.cuda)]
    proc = ("/proc",) if {ROOT, PROC} <= cell.active else paths.SHARED_PROC
    rules += [(path, landlock.READ) for path in proc]
    if ROOT in cell.active:
        rules.append((SHARED_MEMORY, landlock.WRITE))
    rules.append((cell.scratch, landlock.BUILD if cell.confinement.compilers else landlock.WRITE))
    return rules
