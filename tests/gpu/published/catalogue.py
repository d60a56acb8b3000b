"""All published kernels, by name."""

from __future__ import annotations

import importlib
import pkgutil

from tests.gpu.published import kernels
from tests.gpu.published.form import Published

PUBLISHED: dict[str, Published] = {
    module.name: importlib.import_module(f"{kernels.__name__}.{module.name}").KERNEL
    for module in pkgutil.iter_modules(kernels.__path__)
}
