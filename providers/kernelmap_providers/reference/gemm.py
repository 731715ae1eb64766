"""Oracles of gemm_nt."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.reference.activations import quantized
from kernelmap_providers.reference.dots import dot
from kernelmap_providers.reference.elementary import Floats
from kernelmap_providers.reference.refusal import demand_finite

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


def gemm_nt_fp64(spec: BuildSpec, x: Floats, weight: Array) -> dict[str, Array]:
    """As `gemm_nt` for fp32, fp16 and bf16 weights: sums in fp64, rounded once. Raises RefusedRow."""
    for row in range(len(x)):
        demand_finite(row, x[row], "x")
    if spec.dtypes["weight"] == "bf16":
        weight = (weight.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        return {"y": (x.astype(np.float64) @ weight.astype(np.float64).T).astype(np.float32)}
