"""Dot products of stored weight rows with a quantized activation row: one fp32 chain over blocks in ascending order.

Integer sums within a block are exact; the fp32 steps between blocks are each rounded, in the order written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmap_providers.formats import mxfp4, q4_k, q5_1, q5_k, q6_k, q8_0, q8_1, q8_k
from kernelmap_providers.formats.e2m1 import CODES
from kernelmap_providers.reference.elementary import Floats, dot_lanes

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, Any]
F32 = np.float32
Fields = Callable[[Bytes], tuple[Array, Array, Array, Array, Array]]
DOUBLED_CODES = (2 * CODES).astype(np.int32)


def _isum(values: Array, axis: int | tuple[int, ...] = -1) -> Floats:
    """An exact integer sum, as fp32."""
    total: Floats = values.sum(axis=axis, dtype=np.int32).astype(np.float32)
    return total


def _codes(values: Array, *shape: int) -> Array:
    return values.astype(np.int32).reshape(*values.shape[:-1], *shape)


def dot_scale_min(rows: Bytes, act: Bytes, fields: Fields) -> Floats:
    """q4_k and q5_k with q8_k: ``acc + d_x * (d * I - dmin * J)``."""
    d, dmin, scales, minima, codes = fields(rows)
    d_x, q, _ = q8_k.fields(act)
    q = _codes(q, 8, 32)
    acc = np.zeros(len(rows), np.float32)
    for b in range(d.shape[-1]):
        products = scales[:, b].astype(np.int32) * (codes[:, b].astype(np.int32) * q[b]).sum(axis=-1)
        offsets = minima[:, b].astype(np.int32) * q[b].sum(axis=-1)
        step = d[:, b] * _isum(products) - dmin[:, b] * _isum(offsets)
        acc = acc + d_x[b] * step
    return acc


def dot_q4_k(rows: Bytes, act: Bytes) -> Floats:
    """q4_k with q8_k."""
    return dot_scale_min(rows, act, q4_k.fields)


def dot_q5_k(rows: Bytes, act: Bytes) -> Floats:
    """q5_k with q8_k."""
    return dot_scale_min(rows, act, q5_k.fields)


def dot_q6_k(rows: Bytes, act: Bytes) -> Floats:
    """q6_k with q8_k: ``acc + d_x * (d * I)``."""
    d, scales, codes = q6_k.fields(rows)
    d_x, q, _ = q8_k.fields(act)
    q = _codes(q, 16, 16)
    acc = np.zeros(len(rows), np.float32)
    for b in range(d.shape[-1]):
        products = scales[:, b].astype(np.int32) * (codes[:, b].astype(np.int32) * q[b]).sum(axis=-1)
        acc = acc + d_x[b] * (d[:, b] * _isum(products))
    return acc


def dot_q8_0(rows: Bytes, act: Bytes) -> Floats:
    """q8_0 with q8_0: ``acc + (d * d_x) * I``."""
    d, codes = q8_0.fields(rows)
    d_x, q = q8_0.fields(act)
    acc = np.zeros(len(rows), np.float32)
    for b in range(d.shape[-1]):
        acc = acc + (d[:, b] * d_x[b]) * _isum(codes[:, b].astype(np.int32) * q[b].astype(np.int32))
    return acc


def dot_mxfp4(rows: Bytes, act: Bytes) -> Floats:
    """mxfp4 with q8_0: as `dot_q8_0` with doubled E2M1 integers and the scale halved."""
    exponents, codes = mxfp4.fields(rows)
    d = np.where(exponents == 255, F32(np.nan), np.ldexp(F32(1), exponents.astype(np.int32) - 128))
    d_x, q = q8_0.fields(act)
    acc = np.zeros(len(rows), np.float32)
    for b in range(d.shape[-1]):
        acc = acc + (d[:, b] * d_x[b]) * _isum(DOUBLED_CODES[codes[:, b]] * q[b].astype(np.int32))
    return acc


def dot_q5_1(rows: Bytes, act: Bytes) -> Floats:
    """q5_1 with q8_1: ``acc + ((d * d_x) * I + m * s_x)``."""
    d, m, codes = q5_1.fields(rows)
    d_x, s_x, q = q8_1.fields(act)
    acc = np.zeros(len(rows), np.float32)
    for b in range(d.shape[-1]):
        total = _isum(codes[:, b].astype(np.int32) * q[b].astype(np.int32))
        acc = acc + ((d[:, b] * d_x[b]) * total + m[:, b] * s_x[b])
    return acc


def dot_fp32(rows: Array, act: Bytes) -> Floats:
    """fp32 weights with an fp32 row: the 8-lane rule."""
    return dot_lanes(rows, np.ascontiguousarray(act).view(np.float32))


def dot_fp16(rows: Array, act: Bytes) -> Floats:
    """fp16 weights, widened exactly, with an fp32 row."""
    return dot_fp32(rows.astype(np.float32), act)


def dot_bf16(rows: Array, act: Bytes) -> Floats:
    """bf16 bit patterns, widened exactly, with an fp32 row."""
    return dot_fp32((rows.astype(np.uint32) << 16).view(np.float32), act)


DOTS: dict[str, Callable[[Array, Bytes], Floats]] = {
    "q4_k": dot_q4_k, "q5_k": dot_q5_k, "q6_k": dot_q6_k, "q8_0": dot_q8_0, "mxfp4": dot_mxfp4, "q5_1": dot_q5_1,
    "fp32": dot_fp32, "fp16": dot_fp16, "bf16": dot_bf16,
}  # fmt: skip
"""``dot(weight rows [N, ...], bytes of one activation row) -> fp32 [N]`` by weight format."""


def dot(weight_format: str, rows: Array, act: Bytes) -> Floats:
    """Dots of all rows with one activation row; a weight scale that is not finite gives what IEEE says."""
    with np.errstate(over="ignore", invalid="ignore"):
        return DOTS[weight_format](rows, act)
