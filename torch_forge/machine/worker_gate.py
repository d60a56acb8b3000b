"""The gate: a fork of the workers' parent inside a user and a pid namespace, from where confined tasks are forked.

Two processes. The outer one, which is seen from outside, only waits; the inner one is the first in the namespace, so that
all confined tasks end with it, and it ends with the outer one, which ends with the parent.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import NoReturn

from torch_forge.machine.sandbox.namespaces import PidNamespaces, die_with_parent, enter_pids, enter_user
from torch_forge.machine.worker_child import shed
from torch_forge.machine.worker_parent import Parent
from torch_forge.records.sandbox import PIDS, USER

CRASHED = 70


def open_gate(control: socket.socket) -> NoReturn:
    """Run the gate in this fork of the parent: first say what there is, a JSON object of layer -> why it is missing."""
    try:
        (kept,) = shed(control)
        die_with_parent()
        missing = _enter()
        if PIDS in missing:
            kept.send(json.dumps(missing).encode())
        elif (inner := os.fork()) == 0:
            _serve(kept, missing)
        else:
            kept.close()
            os.waitpid(inner, 0)
    finally:
        os._exit(CRASHED)


def _serve(control: socket.socket, missing: dict[str, str]) -> None:
    die_with_parent()
    gate = Parent(control, client_lives=lambda: True, namespaces=PidNamespaces())
    control.send(json.dumps(missing).encode())
    gate.serve()


def _enter() -> dict[str, str]:
    """Root may have a pid namespace without a user namespace where those are forbidden."""
    steps: dict[str, Callable[[], None]] = {USER: enter_user, PIDS: enter_pids}
    missing = {}
    for layer, step in steps.items():
        try:
            step()
        except OSError as error:
            missing[layer] = error.strerror or str(error)
    return missing
