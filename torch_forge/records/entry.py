"""What the cache keeps: the key that says where an entry applies, and the two kinds of entry.

A ``CacheEntry`` is a kernel that won, with everything needed to use it again without measuring: what it was
verified for, what it was compared with, how it was built. A ``KeptEntry`` is the opposite decision, that eager (or
``torch.compile``) stays, so that the next run does not measure again either. Both are immutable and named
by their content: whoever changes a byte of an entry changes the name it should have.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime

from torch_forge.records import codec
from torch_forge.records.device import DeviceInfo
from torch_forge.records.kernels import Binding, Built, Candidate, Certificate, Config, Origin
from torch_forge.records.outcomes import CaseResult, Comparison
from torch_forge.records.problem import Problem
from torch_forge.records.session import RegionResult

SCHEMA = 1
"""Version of the entry format; an entry of another version is a miss."""
ENTRY_POINT = 1
"""Version of the contract in ``forge.h``; raised when a library built before would be called wrongly."""

SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""What may become the name of a directory: no separator, no leading dot."""


def abi_tag() -> str:
    """What a library must agree on to be loadable: entry point, torch's stable ABI, operating system, processor.

    The torch version is not part of it: libraries on the stable ABI load in other versions.
    """
    return f"forge{ENTRY_POINT}-torch_stable-{sys.platform}-{platform.machine()}"


def safe_name(text: str, what: str) -> str:
    """``text``, if it can be a directory's name. Raises ValueError (a RecordError where a record is decoded)."""
    if not SAFE_NAME.fullmatch(text):
        raise ValueError(f"{what} {text[:80]!r} cannot name a directory")
    return text


@dataclass(frozen=True)
class CacheKey:
    """Where an entry applies. Every field must agree, with the exceptions in ``reasons_against``."""

    problem: str
    """``Problem.digest``."""
    policy: str
    """A value of ``Policy``."""
    device: str
    """``DeviceInfo.key``: the device class."""
    arch: str
    """``sm_90`` on a GPU, ``cpu_avx2`` on a CPU: what a source is written for."""
    isa: str
    """CPU: ``-march`` value and the instruction sets it may use, ``native: avx avx2 fma``; empty on a GPU."""
    compiler: str
    """Identity and version, ``nvcc 13.0.88 + g++ 12.2.0``; empty in a wanted key: there is none here, any will do."""
    abi: str
    """``abi_tag()``."""

    def __post_init__(self) -> None:
        for what in ("problem", "device", "arch"):
            safe_name(getattr(self, what), what)

    @classmethod
    def of(cls, problem: Problem, device: DeviceInfo, *, compiler: str, march: str = "native") -> CacheKey:
        """The key under which this machine stores and looks up ``problem``.

        compiler: what toolchain discovery found, empty if there is none. march: ``Settings.march``.
        """
        cpu = device.type == "cpu"
        return cls(
            problem=problem.digest,
            policy=problem.policy.value,
            device=device.key,
            arch=f"cpu_{device.arch}" if cpu else device.arch,
            isa=f"{march}: {' '.join(device.features)}" if cpu else "",
            compiler=compiler,
            abi=abi_tag(),
        )

    def reasons_against(self, wanted: CacheKey, *, sources_only: bool = False) -> list[str]:
        """Why an entry with this key may not serve ``wanted``, one line a field; empty if it may.

        sources_only: the entry is compiled here before use, so device class, instruction set, compiler and ABI of the
        place where it was tuned do not matter, only what the source is written for.
        """
        skipped = {"device", "isa", "compiler", "abi"} if sources_only else set()
        if not wanted.compiler:
            skipped.add("compiler")
        return [
            _field_reason(f.name, getattr(self, f.name), getattr(wanted, f.name))
            for f in fields(self)
            if f.name not in skipped and getattr(self, f.name) != getattr(wanted, f.name)
        ]


def _field_reason(name: str, stored: str, wanted: str) -> str:
    """One line about a field that differs; long lists of instruction sets are reduced to their difference."""
    if name == "isa":
        ours, theirs = set(wanted.split()), set(stored.split())
        return f"isa: only in the entry: {_listed(theirs - ours)}; only here: {_listed(ours - theirs)}"
    return f"{name}: the entry has {stored!r}, wanted {wanted!r}"


def _listed(words: set[str]) -> str:
    return " ".join(sorted(words)) or "nothing"


@dataclass(frozen=True)
class Environment:
    """Where an entry was made; for people, and to tell when a decision is out of date."""

    torch_forge: str
    torch: str
    python: str
    device_name: str
    """``DeviceInfo.name``."""
    driver: str
    """GPU driver version; empty on the CPU."""


@dataclass(frozen=True)
class KernelFacts:
    """A built candidate without its source, which lies beside the entry as a file."""

    digest: str
    """``Candidate.digest``."""
    name: str
    backend: str
    """``cuda`` or ``cpu``."""
    origin: Origin
    author: str
    configs: tuple[Config, ...]
    statics: Mapping[str, int]
    program: str | None
    workspace_bytes: int
    resources: Mapping[str, int]
    """``Built.resources``."""
    build_seconds: float

    @classmethod
    def of(cls, built: Built) -> KernelFacts:
        """The facts of a built candidate."""
        c = built.candidate
        return cls(
            c.digest, c.name, c.backend, c.origin, c.author, c.configs, dict(c.statics), c.program, c.workspace_bytes,
            dict(built.resources), built.seconds,
        )  # fmt: skip

    def candidate(self, problem: str, source: str) -> Candidate:
        """The candidate again, from its stored source. Raises ValueError if that source is not the one built."""
        candidate = Candidate(
            problem=problem, name=self.name, backend=self.backend, source=source, origin=self.origin, author=self.author,
            configs=self.configs, statics=self.statics, program=self.program, workspace_bytes=self.workspace_bytes,
        )  # fmt: skip
        if candidate.digest != self.digest:
            raise ValueError(f"the source is not the one of kernel {self.digest}")
        return candidate


@dataclass(frozen=True)
class FileFacts:
    """One file of an entry."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class CacheEntry:
    """A kernel that won for one workload."""

    schema: int
    key: CacheKey
    workload: str
    """``Problem.workload`` it was tuned on."""
    kernel: KernelFacts
    certificate: Certificate
    binding: Binding
    """Of the tuned workload."""
    comparisons: tuple[Comparison, ...]
    """Every config that was timed against eager."""
    cases: tuple[CaseResult, ...]
    """What the verdict rests on."""
    gates: tuple[str, ...]
    """Names of the further checks it went through (``fresh-inputs``, ``memcheck`` ...)."""
    result: RegionResult
    """As reported by the run that tuned it; ``calls`` and ``share`` are of that run's model."""
    environment: Environment
    created: str
    """UTC, ISO 8601 with microseconds."""
    files: Mapping[str, FileFacts]
    """Filled in by the store, from the bytes it wrote. Without a library the entry is *sources only*."""

    def __post_init__(self) -> None:
        _check_common(self.schema, self.workload, self.created)
        if (self.certificate.problem, self.certificate.policy) != (self.key.problem, self.key.policy):
            raise ValueError("the certificate is for another problem than the key")


@dataclass(frozen=True)
class KeptEntry:
    """The decision that no kernel is installed for one workload."""

    schema: int
    key: CacheKey
    workload: str
    result: RegionResult
    """``verdict`` is ``kept`` or ``failed``, ``why`` says with which figures."""
    environment: Environment
    created: str
    """UTC, ISO 8601 with microseconds."""

    def __post_init__(self) -> None:
        _check_common(self.schema, self.workload, self.created)

    def reasons_against(self, environment: Environment) -> list[str]:
        """Why the decision is out of date: another torch_forge has other kernels, another torch another eager."""
        return [
            f"{what}: decided under {theirs!r}, this is {ours!r}"
            for what, theirs, ours in (
                ("torch_forge", self.environment.torch_forge, environment.torch_forge),
                ("torch", _minor(self.environment.torch), _minor(environment.torch)),
            )
            if theirs != ours
        ]


AnyEntry = CacheEntry | KeptEntry


def entry_name(entry: AnyEntry) -> str:
    """Name of the entry's directory; its ``entry.json`` has exactly the content ``codec.dumps(entry)``."""
    return content_name(entry.workload, codec.dumps(entry).encode())


def content_name(workload: str, data: bytes) -> str:
    """``<workload>-<digest of the bytes of entry.json>``."""
    return f"{workload}-{hashlib.sha256(data).hexdigest()[:32]}"


def _check_common(schema: int, workload: str, created: str) -> None:
    if schema != SCHEMA:
        raise ValueError(f"entry format {schema}, this version reads {SCHEMA}")
    safe_name(workload, "workload")
    if datetime.fromisoformat(created).tzinfo is None:
        raise ValueError(f"created {created!r} has no time zone")


def _minor(version: str) -> str:
    """``2.14`` of ``2.14.1+cu130``."""
    return ".".join(version.partition("+")[0].split(".")[:2])
