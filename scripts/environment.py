"""Make the environment that the scripts run in: ``.venv``, a torch that fits this machine, the package, editable.

Needs only the standard library, so it runs before anything is installed. Decisions (`decide`) are apart from deeds
(`main`), and a stamp makes the second run free. A torch that is already on the machine is used where it is: then
nothing large is downloaded, and a GPU machine without a network works too.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
EXTRAS = {"quickstart": ("models",), "test": ("models", "llm", "dev")}
"""Role -> extras of setup.py. A role's environment also serves the roles before it."""
MODULES = (
    "numpy",
    "optuna",
    "rich",
    "jinja2",
    "platformdirs",
    "filelock",
    "pynvml",
    "transformers",
    "pytest",
    "ruff",
    "mypy",
)
"""Looked for where nothing can be installed, to say what is missing."""

CPU_TORCH = "torch==2.13.0"
"""The release whose CPU build is smallest where an index or a wheel folder serves one; see docs/contributing.md."""
CUDA_TORCH = "torch>=2.11,<2.15"
MIN_TORCH = (2, 11)
INCOMPLETE = " with what was there"
"""Ends the stamp of an environment for which nothing could be downloaded."""
CUDA_BUILD_GB = 12
"""Disk that a CUDA build of torch needs while it is installed."""


@dataclass(frozen=True)
class Machine:
    """What the choice of torch depends on."""

    gpu: bool
    nvcc: bool
    found_torch: tuple[int, int] | None
    """Version of the torch that the starting Python can import, or None."""
    found_cuda: bool
    """Whether that is a CUDA build."""
    free_gb: float


@dataclass(frozen=True)
class Choice:
    """Which torch, and why in one line."""

    borrow: bool
    """Use the starting Python's packages; install only what is missing."""
    requirement: str
    """For pip; empty if nothing is to be installed."""
    why: str


def decide(machine: Machine, role: str) -> Choice:
    """The torch to use for ``quickstart`` or ``test``."""
    if machine.found_torch and machine.found_torch >= MIN_TORCH and (machine.found_cuda or not machine.gpu):
        version = ".".join(map(str, machine.found_torch))
        return Choice(borrow=True, requirement="", why=f"this Python already has torch {version}")
    if machine.gpu:
        return Choice(borrow=False, requirement=CUDA_TORCH, why="an NVIDIA GPU: the CUDA build of torch")
    if role == "test" and machine.nvcc:
        if machine.free_gb >= CUDA_BUILD_GB:
            return Choice(
                borrow=False, requirement=CUDA_TORCH, why="nvcc is here: the CUDA build, so that the compile-only tests run"
            )
        return Choice(
            borrow=False,
            requirement=CPU_TORCH,
            why=f"nvcc is here, but under {CUDA_BUILD_GB} GB of disk are free: CPU torch",
        )
    return Choice(borrow=False, requirement=CPU_TORCH, why="no NVIDIA GPU: CPU torch")


def look() -> Machine:
    """Examine this machine without importing torch."""
    version, cuda = _torch_of_this_python()
    return Machine(
        gpu=bool(shutil.which("nvidia-smi")) and _quiet(["nvidia-smi", "-L"]),
        nvcc=bool(shutil.which("nvcc")),
        found_torch=version,
        found_cuda=cuda,
        free_gb=shutil.disk_usage(ROOT).free / 1e9,
    )


def _torch_of_this_python() -> tuple[tuple[int, int] | None, bool]:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None, False
    try:
        found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch"))
        text = Path(spec.origin).with_name("version.py").read_text()
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None, False
    return (int(found[1]), int(found[2])) if found else None, re.search(
        r"^cuda\b[^=]*= *['\"]", text, re.MULTILINE
    ) is not None


def stamp_text(role: str) -> str:
    """Changes whenever the environment has to be made again."""
    sources = b"".join((ROOT / name).read_bytes() for name in ("setup.py", "scripts/environment.py"))
    return f"{role} {sys.version_info[:2]} {ROOT} {hashlib.sha256(sources).hexdigest()}"


def is_ready(role: str, *, strict: bool = False) -> bool:
    """Whether ``.venv`` was made for this role, or for one that includes it, from the present files. strict: completely."""
    names = list(EXTRAS)
    wider = names[names.index(role) :]
    endings = ("",) if strict else ("", INCOMPLETE)
    return PYTHON.exists() and any(
        _stamp(r).is_file() and _stamp(r).read_text() == stamp_text(r) + ending for r in wider for ending in endings
    )


def _stamp(role: str) -> Path:
    return VENV / f"torch-forge-{role}.stamp"


def make(role: str, *, strict: bool) -> None:
    """Create or complete ``.venv``. Exits with a message if this machine cannot do it."""
    choice = decide(look(), role)
    say(f"environment for {role} in {VENV}; {choice.why}")
    _create_venv()
    if choice.borrow:
        _lend_packages()
    wanted = [choice.requirement] if choice.requirement and not _venv_has_torch() else []
    extras = ",".join(EXTRAS[role])
    may_lack = choice.borrow and not strict
    patience = ["--retries", "0", "--timeout", "10"] if may_lack else []
    say("installing the package and what it needs; on a new machine this is most of the time")
    if _pip("install", *patience, *wanted, "-e", f"{ROOT}[{extras}]", silent=may_lack):
        _stamp(role).write_text(stamp_text(role))
        return
    if not may_lack:
        raise SystemExit(
            "environment: pip failed; its message is above. Without a network, start from a Python that has torch."
        )
    _install_offline()
    _stamp(role).write_text(stamp_text(role) + INCOMPLETE)


def _create_venv() -> None:
    if PYTHON.exists() and _quiet([str(PYTHON), "-c", ""]):
        return
    command = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)]
    with_pip = [a for a in command if a != "--without-pip"]
    if _quiet(with_pip):
        return
    if not _quiet(command):
        raise SystemExit("environment: `python3 -m venv` failed; on Debian and Ubuntu install the package python3-venv")
    say("no ensurepip in this Python: going on without pip of our own")


def _lend_packages() -> None:
    """Put the starting Python's packages behind ours. ``--system-site-packages`` would not: it lends those of the Python
    that a virtual environment was made from, and on GPU machines torch often lives in one.
    """
    folders = [p for p in dict.fromkeys(sysconfig.get_path(k) for k in ("purelib", "platlib")) if p]
    folders += [p for p in sys.path if p.endswith(("site-packages", "dist-packages")) and p not in folders]
    (_site_packages() / "torch-forge-lent.pth").write_text("".join(f"{p}\n" for p in folders))


def _install_offline() -> None:
    say("nothing could be downloaded: going on with what this Python has; delete .venv to try again")
    if not _pip("install", "--no-index", "--no-deps", "--no-build-isolation", "-e", str(ROOT), silent=True):
        (_site_packages() / "torch-forge-checkout.pth").write_text(f"{ROOT}\n")
        say("the package is used from the checkout, without its command `torch-forge` (use python -m torch_forge.cli.main)")
    code = f"import importlib.util as u; print(*[m for m in {MODULES} if not u.find_spec(m)], sep=', ')"
    missing = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if missing:
        say(f"missing, and done without where possible: {missing}")


def _site_packages() -> Path:
    return VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _venv_has_torch() -> bool:
    return _quiet([str(PYTHON), "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"])


def _pip(*arguments: str, silent: bool = False) -> bool:
    if _quiet([str(PYTHON), "-m", "pip", "--version"]):
        command = [str(PYTHON), "-m", "pip"]
    elif importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    else:
        return False
    # Only errors are shown. What a script imports is compiled at its first import; all of transformers would take longest.
    options = ["-q", "-q", "--disable-pip-version-check"] + ["--no-compile"] * (arguments[0] == "install")
    full = [*command, arguments[0], *options, *arguments[1:]]
    return subprocess.run(full, check=False, capture_output=silent).returncode == 0


def _quiet(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def say(message: str) -> None:
    """Tell the terminal; standard output belongs to the script that follows."""
    print(f"-- {message}", file=sys.stderr, flush=True)


def main() -> None:
    """``environment.py quickstart|test [--strict]``: return once ``.venv`` is ready for that."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("role", choices=tuple(EXTRAS))
    parser.add_argument("--strict", action="store_true", help="a package that cannot be installed is an error")
    arguments = parser.parse_args()
    if sys.version_info < (3, 10):  # noqa: UP036  this file meets the Python that is there
        raise SystemExit(
            f"environment: Python 3.10 or newer is needed, this is {sys.version.split()[0]}; set PYTHON=python3.12, say"
        )
    fcntl.flock(os.open(ROOT / "scripts", os.O_RDONLY), fcntl.LOCK_EX)  # two scripts started at once make one environment
    if not is_ready(arguments.role, strict=arguments.strict):
        make(arguments.role, strict=arguments.strict)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)  # a caller's path must not decide what counts as installed
    main()
