"""Oracle of gemm_nt."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.reference.activations import quantized
from kernelmap_providers.reference.dots import dot
from kernelmap_providers.reference.elementary import Floats

Array = np.ndarray[Any, Any]


def gemm_nt(spec: BuildSpec, x: Floats, weight: Array) -> dict[str, Array]:
    """y ``[R, N]`` = x ``[R, K]`` times weight transposed, weight ``[N, K]`` in its storage format.

    Each row of x is quantized to the weight format's partner; each element is one chain (see `dots`).
    Raises RefusedRow.
    """
    storage = spec.dtypes["weight"]
    y = np.zeros((len(x), len(weight)), np.float32)
    for row in range(len(x)):
        y[row] = dot(storage, weight, quantized(storage, x[row], row, "x"))
    return {"y": y}
