"""Ready functions on torch tensors, whose provider the resolver chooses once per device, dtypes and dims.

Needs the extra ``kernelmap[torch]``: without it, calling a function raises KernelmapError (KM550). Importing this
package imports neither torch nor a kernel.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelmap.ops.mxfp4 import mxfp4_expert_linear

_READY = {"mxfp4_expert_linear": "kernelmap.ops.mxfp4"}
"""Functions by name, with their module. Each module has ``register``, which makes its function traceable."""


def __getattr__(name: str) -> Any:
    """A ready function, its torch operator registered if torch is there. Raises AttributeError for another name."""
    if name not in _READY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_READY[name])
    module.register()
    function = globals()[name] = getattr(module, name)
    return function


def __dir__() -> list[str]:
    """The ready functions."""
    return sorted({*globals(), *_READY})


__all__ = ["mxfp4_expert_linear"]
