"""What travels between a task's process and those that watch over it: frames of JSON, and notes about the process.

A frame may come from a hostile process: it has a limit, and whoever reads it takes anything malformed for no answer. Notes
come from our own code only: from the workers' parent, and from the task's process before it loads anything foreign.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

RESULT_BYTES = 64 << 20
"""A task's answer is a small record; bulk data travels in files."""
LENGTH = struct.Struct("<q")
REPLY_BYTES = LENGTH.size + RESULT_BYTES
"""A child of which more than this is unread is killed."""

NOTE = struct.Struct("<ci")
"""Kind and number."""
FORKED, NOT_FORKED, ENDED = b"F", b"N", b"E"
"""From the parent: the pid, the errno of a fork that failed, the status as in ``subprocess``."""
LOCKED, NOT_LOCKED = b"L", b"U"
"""From a confined task, which tells its pid (FORKED) itself too: whether all of its sandbox is on, before foreign code."""
TASK, CONFINED_TASK, GATE = b"t", b"c", b"g"
"""What a parent is asked to fork; with two descriptors (channel and watch), or for the gate with its control socket."""
LEAVE = b"l"
"""To a parent: end, the client sees to the files. Without it the client has died."""


def send_frame(channel: socket.socket, value: object) -> None:
    """Send ``value`` as length-framed JSON. Raises ValueError if it is too large or not plain, TypeError likewise."""
    body = json.dumps(value).encode()
    if len(body) > RESULT_BYTES:
        raise ValueError(f"{len(body)} bytes of JSON, the limit is {RESULT_BYTES}; hand bulk data over in scratch files")
    channel.sendall(LENGTH.pack(len(body)) + body)


def receive_frame(channel: socket.socket) -> bytes:
    """The body of the next frame, from a side that is trusted. Raises EOFError if it closed first."""
    return _receive_exactly(channel, LENGTH.unpack(_receive_exactly(channel, LENGTH.size))[0])


def _receive_exactly(channel: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = channel.recv(min(count - len(data), 1 << 16))
        if not part:
            raise EOFError("the other side closed the socket")
        data += part
    return bytes(data)


def take_frame(received: bytearray) -> bytes | None:
    """Remove the first frame from what was received and return its body; None if it is not complete.

    Raises ValueError if its length is none that a frame may have.
    """
    if len(received) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(received)
    if not 0 <= length <= RESULT_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    end = LENGTH.size + length
    if len(received) < end:
        return None
    body = bytes(received[LENGTH.size : end])
    del received[:end]
    return body


def plain(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a frame; anything else is no answer."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
