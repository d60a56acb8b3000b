"""Copies what lies behind its last input: the expected result, where a harness keeps everything in one memory."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x, z):
    return x + z


TRICK = Trick(
    name="neighbour_answer",
    section="A2",
    reference=reference,
    sample=lambda: (floats(4096), floats(4096, seed=1)),
    source=kernel(
        r"""
  memcpy(y, (const char*)in[1].data + n * 4, n * 4);""",
        top=r"""
#include <string.h>""",
    ),
    gates=("survives",),
)
