"""int64 words at addresses, in jitted code: how Python and a task of the pool pass what a call needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import inlined
from kernelmap_providers.simd import native, ops


@inlined
def word(address: int) -> Any:
    """The int64 at ``address``."""
    return native.load_word(address)


@inlined
def put(address: int, value: Any) -> None:
    """Store an int64."""
    ops.store(address, np.int64(value))
