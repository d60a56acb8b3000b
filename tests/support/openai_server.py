"""An OpenAI-compatible chat server on loopback that plays a script: answers, errors, delays, half-sent replies.

A real HTTP server, because what breaks clients (timeouts, Retry-After, cut-off bodies) happens below the JSON.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One scripted response."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    before_s: float = 0.0
    """Pause before anything is sent; ends early when the server closes."""
    per_byte_s: float = 0.0
    """Pause before each byte of the body."""
    send_bytes: int | None = None
    """Cut the connection after so many bytes of the body."""


def reply(
    text: str | None, *, finish_reason: str = "stop", usage: tuple[int, int] | None = (100, 50), model: str = "scripted"
) -> Answer:
    """A chat completion with one choice."""
    message = {"role": "assistant", "content": text}
    body: dict[str, Any] = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
    }  # fmt: skip
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return Answer(body=json.dumps(body).encode())


def failure(status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None) -> Answer:
    """An error in OpenAI's form."""
    body = {"error": {"message": message, "type": "error", "param": None, "code": code}}
    return Answer(status, json.dumps(body).encode(), headers or {})


@dataclass(frozen=True)
class Request:
    """One request that arrived."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Mapping[str, Any]


class OpenAIServer:
    """Plays ``script`` one answer a request; answers 500 when it is over."""

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self.base_url = ""

    def take(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            return self.script.pop(0) if self.script else failure(500, "the script is over")


def _handler(server: OpenAIServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._send(server.take(Request(self.path, headers, body)))

        def _send(self, answer: Answer) -> None:
            if server.closing.wait(answer.before_s):
                return
            try:
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                step = 1 if answer.per_byte_s else max(1, len(answer.body))
                for start in range(0, len(answer.body[: answer.send_bytes]), step):
                    if server.closing.wait(answer.per_byte_s):
                        return
                    self.wfile.write(answer.body[: answer.send_bytes][start : start + step])
                    self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client gave up, which is what some scripts are for

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def openai_server(*script: Answer) -> Iterator[OpenAIServer]:
    """A running server; its threads end with the block."""
    server = OpenAIServer(*script)
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    server.base_url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        http.shutdown()
        thread.join()
        http.server_close()
