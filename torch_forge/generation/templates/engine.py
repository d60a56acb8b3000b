"""The template engine: a lowered program to the sources that compute it, best guess first.

Everything here is a pure function of its arguments, so the same request always gives the same bytes.
"""

from __future__ import annotations

from torch_forge.generation.templates import cpu, cuda_pointwise, cuda_row
from torch_forge.generation.templates.facts import Job, index_limit
from torch_forge.records.device import DeviceInfo
from torch_forge.records.kernels import Candidate, Origin
from torch_forge.records.problem import Problem
from torch_forge.records.program import Lowered

__all__ = ["candidates", "index_limit"]


def candidates(
    problem: Problem, lowered: Lowered, device: DeviceInfo, *, origin: Origin = Origin.TEMPLATE
) -> list[Candidate]:
    """Every template's source for this program on this device, best guess first; at least one.

    Each candidate holds several configs; config 0 is valid for any parameter values and at element alignment. The
    others check at launch what they rely on and run as config 0 where it does not hold.
    """
    job = Job(problem, lowered, device, origin)
    if device.type == "cpu":
        return cpu.row(job) if lowered.program.kind == "row" else cpu.pointwise(job)
    return cuda_row.row(job) if lowered.program.kind == "row" else cuda_pointwise.pointwise(job)
