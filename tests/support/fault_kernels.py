"""Kernels that take more of the machine than they should, and compilers that do everything but compile."""

from __future__ import annotations

from pathlib import Path

ALLOCATES = """
static void* held[64];
for (int k = 0; k < 64; ++k) {
  held[k] = malloc(1ull << 30);
  if (!held[k]) abort();
  *(volatile char*)held[k] = 1;
}
for (void* one : held) free(one);
memcpy(OUT(0), IN(0), count(in[0]) * 4);
"""
"""Takes 64 GiB of address space, of which hardly anything is used, and is right if it gets it. Does ``forge_launch``."""

HANGS = "sleep 600\n"
SEGFAULTS = "kill -SEGV $$\n"
IS_KILLED = "kill -KILL $$\n"
PRINTS_MEGABYTES = "yes 'main.cpp:1:1: error: everything is wrong' | head -c 40000000 >&2\nexit 1\n"
SAYS_NOTHING = "exit 1\n"
CUTS_ITS_OUTPUT = """
{cxx} "$@" || exit 1
for word; do case "$word" in -shared) link=1;; -o) out=next;; *) [ "$out" = next ] && out=$word;; esac; done
[ -n "$link" ] && truncate -s $(($(stat -c %s "$out") * {percent} / 100)) "$out"
exit 0
"""
WRITES_NO_OUTPUT = """
for word; do [ "$word" = -shared ] && exit 0; done
"""


def fake_compiler(path: Path, cxx: str, body: str) -> str:
    """A program that runs ``body`` and then, unless that has ended it, the compiler; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{body.replace("{cxx}", cxx)}\nexec {cxx} "$@"\n')
    path.chmod(0o755)
    return str(path)
