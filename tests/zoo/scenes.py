"""What tricks act upon besides their outputs: a folder, a server, another process; and whether the harm was done."""

from __future__ import annotations

import atexit
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

Answer = Callable[[], bool]
_PATIENCE_S = 1.0
SECRET = "a secret of this machine"


@cache
def server() -> socket.socket:
    """Listens as long as the test process lives."""
    return _listening(socket.AF_INET, ("127.0.0.1", 0))


@cache
def local_server() -> socket.socket:
    """Listens at an abstract address named after the other server's port."""
    return _listening(socket.AF_UNIX, f"\0zoo-{port()}")


def port() -> int:
    """What ``@PORT@`` stands for."""
    return int(server().getsockname()[1])


@contextmanager
def leaves_mark(folder: Path) -> Iterator[Answer]:
    """The harm is a file."""
    mark = folder / "mark"
    mark.rmdir() if mark.is_dir() else mark.unlink(missing_ok=True)
    yield mark.exists


@contextmanager
def leaves_mark_later(folder: Path) -> Iterator[Answer]:
    """The harm is a file that a process leaves which should have been ended by then."""
    with leaves_mark(folder) as left:
        yield lambda: _soon(left)


@contextmanager
def has_secret(folder: Path) -> Iterator[Answer]:
    """A file that nobody has any business to read; being built with it is harm enough."""
    (folder / "secret").write_text(f'"{SECRET}"\n')
    yield lambda: True


@contextmanager
def carries_secret(folder: Path) -> Iterator[Answer]:
    """The harm is a copy of such a file."""
    with has_secret(folder), leaves_mark(folder) as left:
        yield left


@contextmanager
def listens(folder: Path) -> Iterator[Answer]:
    """The harm is a connection."""
    del folder
    _visited(server())
    yield lambda: _visited(server())


@contextmanager
def listens_locally(folder: Path) -> Iterator[Answer]:
    """As ``listens``, at an address that no network separates."""
    del folder
    _visited(local_server())
    yield lambda: _visited(local_server())


@contextmanager
def has_victim(folder: Path) -> Iterator[Answer]:
    """A process that the harm would end."""
    del folder
    victim = subprocess.Popen([f"zoo-victim-{port()}", "60"], executable="/bin/sleep")
    try:
        yield lambda: victim.poll() is not None
    finally:
        victim.kill()
        victim.wait()


def _listening(family: socket.AddressFamily, address: object) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(16)
    listener.setblocking(False)
    atexit.register(listener.close)
    return listener


def _visited(listener: socket.socket) -> bool:
    """Whether anybody connected since it was last asked."""
    found = False
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return found
        found = True


def _soon(question: Answer) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while not question() and time.monotonic() < deadline:
        time.sleep(0.02)
    return question()
