"""Tasks for the tests of sessions: each treats the dialogue in one way."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torch_forge.machine.worker_child import Dialogue


def echo(payload: Any, scratch: Path, dialogue: Dialogue) -> Any:
    """Reply with what was asked; return how often."""
    count = 0
    for message in dialogue:
        dialogue.reply(message)
        count += 1
    return [payload, count]


def obey(payload: Any, scratch: Path, dialogue: Dialogue) -> Any:
    """Do what each message names; ``pid`` is answered."""
    for message in dialogue:
        match message:
            case "pid":
                dialogue.reply([os.getpid(), os.getppid()])
            case "raise":
                raise ValueError("no such layout")
            case "crash":
                ctypes.string_at(0)
            case "exit":
                os._exit(0)
            case "return":
                return "enough"
            case "hang":
                grandchild = subprocess.Popen(["sleep", "600"])
                (scratch / "pids").write_text(f"{os.getpid()} {grandchild.pid}")
                time.sleep(600)
            case "reply twice":
                dialogue.reply(1)
                dialogue.reply(2)
            case "ask again":
                next(dialogue)
            case "not plain":
                dialogue.reply({1, 2})
            case "say":
                sys.stdout.write("said on stdout\n")
                dialogue.reply(None)
    return None


def write(payload: Any, scratch: Path, dialogue: Dialogue) -> Any:
    """Write to the judge's socket, past the dialogue: ``payload`` says what and when."""
    channel = _channel()
    if payload["when"] == "before":
        channel.sendall(_garbage(payload["what"]))
    for message in dialogue:
        if payload["when"] == "instead":
            channel.sendall(_garbage(payload["what"]))
            time.sleep(600)
        dialogue.reply(message)
        if payload["when"] == "after":
            channel.sendall(_garbage(payload["what"]))


def flood(payload: Any, scratch: Path, dialogue: Dialogue) -> Any:
    channel = _channel()
    for _ in dialogue:
        while True:
            channel.sendall(struct.pack("<q", 64 << 20) + b" " * (65 << 20))


def deaf(payload: Any, scratch: Path, dialogue: Dialogue) -> Any:
    """Read nothing; after the judge has hung up, go on."""
    time.sleep(600)


def _channel() -> socket.socket:
    descriptors = [int(d) for d in os.listdir("/proc/self/fd") if int(d) > 2]
    for descriptor in descriptors:
        try:
            return socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
    raise RuntimeError("no socket")


def _garbage(what: str) -> bytes:
    frames: dict[str, Any] = {
        "a reply": {"number": 0, "reply": "right"},
        "a nested frame": None,
        "a list": [1],
    }
    if what in frames:
        body = b"[" * 100_000 if frames[what] is None else json.dumps(frames[what]).encode()
        return struct.pack("<q", len(body)) + body
    return {"bytes": b"\xff" * 64, "half a frame": struct.pack("<q", 100) + b"{", "one byte": b"\x01"}[what]
