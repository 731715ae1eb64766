"""MXFP4 expert linear on a CPU: ``fused`` decodes each row where it is used, ``tiles`` decodes once an expert.

Threads own ranges of output columns; what a column gets depends on the shape and the routing alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kernelmap.spec import BuildSpec
from kernelmap_providers.arguments import Array, given
from kernelmap_providers.experts.mxfp4_columns import (
    INDICES,
    INTS_1,
    TILE_ROWS,
    bucket,
    columns_entry,
    task_address,
)
from kernelmap_providers.jit.compile import compiled
from kernelmap_providers.pool.workers import POOL
from kernelmap_providers.simd.target import host_form

Flat = tuple[Array, int, int]
Weights = tuple[Flat, Flat, int]
"""Packed bytes, scales, and how many experts they hold."""


def mxfp4_expert_linear_numba(spec: BuildSpec) -> Callable[..., int]:
    """Builds the map for the tokens' dtype; variants ``tiles`` and ``fused``.

    Returns 1 + the first token with an expert outside [0, E); the output is then all NaN.
    """
    form = host_form(spec.isa).name
    dtype, mixture_dtype = spec.dtypes["latent_tokens"], spec.dtypes["mixture_weights"]
    double = dtype == "fp64"
    wide = np.dtype(np.float64 if double else np.float32)
    tiles = spec.variant == "tiles"
    add_experts = _add_tiles if tiles else _add_fused
    task = task_address(form, "fp64" if double else "fp32", "tiles" if tiles else "fused")
    narrow = task_address(form, "fp32", "narrow") if dtype == "bf16" else 0
    if tiles:
        compiled(bucket, INDICES, INTS_1, INTS_1)
    experts = spec.dims["E"]

    def run(
        latent_tokens: Array, selected_experts: Array, mixture_weights: Array, shared_output: Array,
        packed_weights: Array, scale_bytes: Array, output: Array, workspace: Array, threads: int,
    ) -> int:  # fmt: skip
        if (bad := _first_bad(selected_experts, experts)) >= 0:
            output[...] = 0x7FC0 if dtype == "bf16" else np.nan
            return bad + 1
        carve = _Carver(workspace)
        total, x, mixture = (carve.take(a.shape, wide) for a in (shared_output, latent_tokens, mixture_weights))
        selected = carve.take(selected_experts.shape, np.dtype(np.int32))
        _widen(shared_output, dtype, total)
        if selected.size:
            groups = scale_bytes.shape[2]
            pairs = latent_tokens.reshape(-1, groups, 16, 2).swapaxes(2, 3)
            _widen(pairs, dtype, x.reshape(-1, groups, 2, 16))
            _widen(mixture_weights, mixture_dtype, mixture)
            np.copyto(selected, selected_experts, casting="same_kind")
            weights = _weights(packed_weights, scale_bytes, selected)
            add_experts(task, total, x, mixture, selected, weights, carve, threads)
        _narrow(total, narrow, output, threads)
        return 0

    return run


def _add_fused(
    task: int, total: Array, x: Array, mixture: Array, selected: Array, weights: Weights, carve: _Carver,
    threads: int,
) -> None:  # fmt: skip
    tile = carve.take((threads, 1, x.shape[1]), x.dtype)
    _run(task, threads, (total, x, mixture, selected, weights[0], weights[1], tile))


def _add_tiles(
    task: int, total: Array, x: Array, mixture: Array, selected: Array, weights: Weights, carve: _Carver,
    threads: int,
) -> None:  # fmt: skip
    order = carve.take((selected.size,), selected.dtype)
    starts = carve.take((weights[2] + 2,), selected.dtype)
    tile = carve.take((threads, TILE_ROWS, x.shape[1]), x.dtype)
    bucket(selected, starts, order)
    _run(task, threads, (total, x, mixture, order, starts, weights[0], weights[1], tile))


def _run(task: int, threads: int, arguments: tuple[Any, ...]) -> None:
    """Runs a task of ``mxfp4_columns`` on the pool."""
    columns_entry(arguments, task, POOL.control(threads), threads)


class _Carver:
    """Hands out aligned pieces of the scratch bytes, in the order of the map's size expression."""

    def __init__(self, workspace: Array) -> None:
        self.left = workspace

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialized array; the next one begins at a multiple of 64 bytes."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        piece, self.left = self.left[:size], self.left[-(-size // 64) * 64 :]
        return piece.view(dtype).reshape(shape)


def _first_bad(selected: Array, experts: int) -> int:
    """First token with an expert outside [0, experts), or -1."""
    if not selected.size or (selected.min() >= 0 and selected.max() < experts):
        return -1
    return int(np.argmax(((selected < 0) | (selected >= experts)).any(axis=1)))


def _widen(values: Array, dtype: str, out: Array) -> None:
    """Numbers of ``dtype`` into fp32 or fp64 ``out``."""
    if dtype != "bf16":
        with np.errstate(over="ignore"):
            np.copyto(out, values, casting="same_kind")
    elif out.dtype == np.float32:
        bits = out.view(np.uint32)
        np.copyto(bits, values)
        np.left_shift(bits, 16, out=bits)
    else:  # few numbers: mixture weights of fp64 tokens
        np.copyto(out, (values.astype(np.uint32) << 16).view(np.float32))


def _narrow(total: Array, task: int, output: Array, threads: int) -> None:
    """fp32 or fp64 sums rounded once to the output's dtype; ``task`` narrows to bf16 bits, 0 where they are not."""
    if task:
        _run(task, threads, (total, output))
        return
    with np.errstate(over="ignore"):
        np.copyto(output, total, casting="same_kind")


def _weights(packed: Array, scales: Array, selected: Array) -> Weights:
    """Both tensors for the kernels: as they are where each expert is contiguous, else copies of the selected experts,
    which are then renumbered in ``selected``. To copy a strided tensor whole would read every expert for those few."""
    if not all(array[0].flags.c_contiguous and array.strides[0] >= 0 for array in (packed, scales)):
        used, places = np.unique(selected, return_inverse=True)
        selected[...] = places.reshape(selected.shape)
        # Indexing keeps the order of axes in memory.
        packed, scales = np.ascontiguousarray(packed[used]), np.ascontiguousarray(scales[used])
    return _flat(packed), _flat(scales), len(packed)


def _flat(weight: Array) -> Flat:
    """A weight whose experts are contiguous, as one run of bytes and its strides."""
    experts, rows, row = weight.shape[0], weight.shape[1], int(np.prod(weight.shape[2:]))
    stride = weight.strides[0] if experts > 1 else rows * row
    return given(as_strided(weight, ((experts - 1) * stride + rows * row,), (1,), writeable=False)), stride, row
