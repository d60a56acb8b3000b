"""A task's own process, from the fork to its exit: what it keeps, what it is given, how its result leaves.

A task is called as ``function(payload, scratch)``, in a session as ``function(payload, scratch, dialogue)``. Nothing that
was registered in the parent runs here, and nothing that the task registers runs when it ends.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from torch_forge.machine.environment import scrub
from torch_forge.machine.frames import FORKED, LOCKED, NOT_LOCKED, NOTE, receive_frame, send_frame
from torch_forge.machine.sandbox import limits, lock
from torch_forge.machine.sandbox.namespaces import die_with_parent
from torch_forge.records.codec import from_plain
from torch_forge.records.sandbox import Confinement

LOG_NAME = "log.txt"
"""A task's stdout and stderr, in its scratch directory."""
FILE_BYTES = 8 << 30
"""No file a task writes may be larger, so that a kernel printing in a loop cannot fill the disk."""
CRASHED_BEFORE_TASK = 70
"""Exit code of a child that failed in our code, before the task's."""


class Dialogue(Iterator[Any]):
    """The task's end of a session: iterate over the judge's messages and reply to each, once, before asking for the next."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._number: int | None = None

    def __next__(self) -> Any:
        """The next message; the iteration ends when the judge has no more. Raises RuntimeError if the last has no reply."""
        if self._number is not None:
            raise RuntimeError("a message of the session was not replied to")
        try:
            request = json.loads(receive_frame(self._channel))
        except EOFError:
            raise StopIteration from None
        self._number = request["number"]
        return request["message"]

    def reply(self, value: Any) -> None:
        """Answer the last message with plain JSON. Raises RuntimeError if there is none to answer."""
        if self._number is None:
            raise RuntimeError("there is no message to reply to")
        send_frame(self._channel, {"number": self._number, "reply": value})
        self._number = None


def child(channel: socket.socket, watch: socket.socket | None, *, parent: int | None) -> NoReturn:
    """Run one task and exit; never returns into the parent's loop.

    watch: for a confined task, where it tells that its sandbox is on. parent: the pid that must still be the parent's.
    """
    code = CRASHED_BEFORE_TASK
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        die_with_parent()
        if parent is not None and os.getppid() != parent:
            os._exit(CRASHED_BEFORE_TASK)
        code = _run_task(*shed(channel, *([watch] if watch is not None else [])))
    except BaseException:  # process boundary: into the log of the parent, or of the task if it was opened
        traceback.print_exc()
    finally:
        # Not sys.exit: nothing that was registered in the parent, or by the task, runs now.
        os._exit(code)


def shed(*kept: socket.socket) -> list[socket.socket]:
    """Be rid of the parent's signal handlers and of its descriptors, the standard streams and ``kept`` excepted."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    numbers = [one.detach() for one in kept]
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in numbers:
            with suppress(OSError):  # the descriptor of this listing is closed already
                os.close(int(name))
    return [socket.socket(fileno=number) for number in numbers]


def _run_task(channel: socket.socket, watch: socket.socket | None = None) -> int:
    """The exit code: 0 if the result was sent, 1 if the task raised, its own if it called sys.exit."""
    request = json.loads(receive_frame(channel))
    scratch = request["scratch"]
    _open_log(os.path.join(scratch, LOG_NAME))
    try:
        _prepare(request)
        if watch is not None:
            _confine(request, watch)
        module, _, function = request["task"].partition(":")
        dialogue = (Dialogue(channel),) if request["session"] else ()
        result = getattr(importlib.import_module(module), function)(request["payload"], Path(scratch), *dialogue)
        lock.check_locked()
        send_frame(channel, {"result": result})
        return 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # process boundary: the client gets it as a value
        traceback.print_exc()
        send_frame(channel, {"exception": f"{type(error).__name__}: {error}"})
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _confine(request: dict[str, Any], watch: socket.socket) -> None:
    """Begin the confinement; by whom it was ended is told over ``watch``, which no foreign code ever holds."""
    own_pid = int(os.readlink("/proc/self"))  # in the namespace of the client, as /proc still is
    watch.send(NOTE.pack(FORKED, own_pid))

    def tell(locked: bool) -> None:
        watch.send(NOTE.pack(LOCKED if locked else NOT_LOCKED, 0))
        watch.close()

    confinement: Confinement = from_plain(Confinement, request["confine"])
    lock.enter(confinement, request["scratch"], cpu_s=request["cpu_s"], file_bytes=FILE_BYTES, tell=tell)


def _open_log(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable(all_threads=False)  # the Python stack of a crash, in the log


def _prepare(request: dict[str, Any]) -> None:
    """Directory, limits, environment and threads of this task."""
    os.chdir(request["scratch"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limits.lower(resource.RLIMIT_FSIZE, FILE_BYTES)
    if request["memory_bytes"] is not None:
        limits.lower(resource.RLIMIT_AS, limits.address_space_bytes() + request["memory_bytes"])
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # if memory runs out, this process goes, not the user's
    os.environ.pop("OPENBLAS_NUM_THREADS", None)  # set by worker_client.py for the parent only
    if request["confine"] is not None:
        scrub(os.environ, home=request["scratch"])
    # What a compiler killed at the limit leaves in its temporary directory goes with the scratch directory.
    for name, value in {"TMPDIR": request["scratch"], **request["env"]}.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None
    if request["threads"]:
        import torch

        torch.set_num_threads(request["threads"])
