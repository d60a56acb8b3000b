"""Right, but talks to a server of the same machine by an abstract address, which is in no file system and no network."""

from __future__ import annotations

from tests.zoo.scenes import listens_locally
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="local_socket",
    section="A94",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  struct sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  strncpy(to.sun_path + 1, "zoo-@PORT@", sizeof(to.sun_path) - 2);
  static bool done;
  const int s = done ? -1 : socket(AF_UNIX, SOCK_STREAM, 0);
  done = true;
  if (s >= 0) {
    if (connect(s, (struct sockaddr*)&to, offsetof(struct sockaddr_un, sun_path) + 1 + strlen("zoo-@PORT@")) == 0)
      send(s, "x", 1, 0);
    close(s);
  }""",
        top=r"""
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=listens_locally,
)
