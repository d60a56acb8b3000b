"""Where the data folders are: in a wheel under ``torch_forge/data/``, in a checkout at the top of the repository.

They live at the top because people read and edit them; the package must work from either place, so nobody else may
build a path to them.
"""

from __future__ import annotations

from pathlib import Path

from torch_forge.errors import ForgeError

PACKAGE = Path(__file__).resolve().parent.parent
DATA_FOLDERS = ("knowledge_base", "csrc_generated")


def data_dir(name: str, *, package: Path = PACKAGE) -> Path:
    """The folder ``knowledge_base`` or ``csrc_generated``; ``package`` is the folder of ``torch_forge`` itself.

    Raises ForgeError if the installation lacks it.
    """
    for folder in (package / "data" / name, package.parent / name):
        if name in DATA_FOLDERS and folder.is_dir():
            return folder
    raise ForgeError(
        f"the data folder {name!r} is missing from this installation of torch_forge ({package})",
        advice="Install torch-forge again; from a checkout, install with `pip install -e .` and keep the checkout in place.",
    )
