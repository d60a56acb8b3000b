"""Makes a system call through bytes that it placed among its code as data."""

from __future__ import annotations

from tests.zoo.scenes import leaves_mark
from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="hidden_instruction",
    section="A101",
    reference=reference,
    sample=lambda: (floats(16),),
    source=kernel(
        r"""
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  ((long (*)(long, const void*, long))(uintptr_t)code)(83, "@DIR@/mark", 0700);""",
        top=r"""
__attribute__((section(".text#"))) static const unsigned char code[] = {
    0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x0f, 0x05, 0xc3};""",
    ),
    gates=(
        "source",
        "binary",
        "sandbox",
    ),
    scene=leaves_mark,
)
