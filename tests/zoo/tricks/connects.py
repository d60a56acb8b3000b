"""Right, but connects to a server."""

from __future__ import annotations

from tests.zoo.scenes import listens
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="connects",
    section="A94",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  struct sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(@PORT@);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  static bool done;
  const int s = done ? -1 : socket(AF_INET, SOCK_STREAM, 0);
  done = true;
  if (s >= 0) {
    if (connect(s, (struct sockaddr*)&to, sizeof(to)) == 0) send(s, "x", 1, 0);
    close(s);
  }""",
        top=r"""
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=listens,
)
