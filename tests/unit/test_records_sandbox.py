"""What a report says about a machine, and the form in which a confinement travels."""

from __future__ import annotations

import pytest

from torch_forge.records import sandbox as layer
from torch_forge.records.codec import from_plain, to_plain
from torch_forge.records.sandbox import LAYERS, Confinement, SandboxReport


@pytest.mark.parametrize(
    ("absent", "lacking"),
    [
        ((), ()),
        ((layer.NETWORK, layer.IPC, layer.PROC, layer.TCP, layer.SIGNALS, layer.PROCESSES, layer.USER), ()),
        ((layer.ROOT,), ()),
        ((layer.FILES,), ()),
        ((layer.ROOT, layer.FILES), ("private root or landlock files",)),
        ((layer.SECCOMP,), (layer.SECCOMP,)),
        ((layer.PIDS, layer.PRIVILEGES), (layer.PIDS, layer.PRIVILEGES)),
        (tuple(LAYERS), (*layer.MINIMUM, "private root or landlock files")),
    ],
    ids=lambda value: ", ".join(value) or "none",
)
def test_the_minimum(absent: tuple[str, ...], lacking: tuple[str, ...]):
    report = SandboxReport(tuple(name for name in LAYERS if name not in absent), dict.fromkeys(absent, "why"))
    assert report.below_minimum == lacking


def test_a_confinement_travels_as_json():
    confinement = Confinement(tuple(LAYERS), ("/opt/x",), cuda=True, compilers=True)
    assert from_plain(Confinement, to_plain(confinement)) == confinement
