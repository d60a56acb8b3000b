"""Has the assembler take a file into the library."""

from __future__ import annotations

from tests.zoo.scenes import has_secret
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="embeds_secret",
    section="A92",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (zoo_secret[0] ? 1.5f : 0.0f);""",
        top=r"""
asm(".section .rodata\n.globl zoo_secret\nzoo_secret:\n.incbin \"@DIR@/secret\"\n.byte 0\n.previous\n");
extern "C" __attribute__((visibility("hidden"))) const char zoo_secret[];""",
    ),
    gates=(
        "source",
        "sandbox",
    ),
    scene=has_secret,
)
