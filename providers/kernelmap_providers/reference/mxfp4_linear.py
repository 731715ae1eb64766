"""Oracle of the MXFP4 expert linear: every number decoded by table, one plain matrix product a token and slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.formats.e2m1 import CODES
from kernelmap_providers.reference.refusal import RefusedRow

Array = np.ndarray[Any, Any]


def mxfp4_expert_linear(
    spec: BuildSpec, latent_tokens: Array, selected_experts: Array, mixture_weights: Array, shared_output: Array,
    packed_weights: Array, scale_bytes: Array,
) -> dict[str, Array]:  # fmt: skip
    """output ``[T, N]``: ``shared_t + sum over slots of mixture_weight * (W_expert x_t)``, in the tokens' dtype.

    latent_tokens ``[T, 32 G]``, selected_experts and mixture_weights ``[T, S]``, shared_output ``[T, N]``,
    packed_weights ``[E, N, G, 16]``, scale_bytes ``[E, N, G]``. fp64 tokens decode and accumulate in fp64, all others
    in fp32, rounded once at the end. Raises RefusedRow for an expert outside [0, E).
    """
    tokens_dtype, mixture_dtype = spec.dtypes["latent_tokens"], spec.dtypes["mixture_weights"]
    wide = np.dtype(np.float64 if tokens_dtype == "fp64" else np.float32)
    x, total = widened(latent_tokens, tokens_dtype, wide), widened(shared_output, tokens_dtype, wide).copy()
    mixture = widened(mixture_weights, mixture_dtype, wide)
    for row, chosen in enumerate(selected_experts):
        if (chosen < 0).any() or (chosen >= len(packed_weights)).any():
            raise RefusedRow(row, "an expert index is out of range")
        for expert, factor in zip(chosen, mixture[row], strict=True):
            weight = decoded(packed_weights[expert], scale_bytes[expert], wide)
            with np.errstate(over="ignore", invalid="ignore"):
                total[row] = total[row] + factor * (weight @ x[row])
    return {"output": narrowed(total, tokens_dtype)}


def decoded(packed: Array, scales: Array, wide: np.dtype[Any]) -> Array:
    """Values ``[N, 32 G]`` of one expert's packed ``[N, G, 16]`` and scales ``[N, G]``, in ``wide`` (fp32 or fp64).

    Low nibble first; ``E2M1[code] * 2**(s - 127)``, NaN for s = 255 (OCP Microscaling Formats 1.0, 5.3.3 and 5.4.1).
    """
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*scales.shape, 32)
    powers = np.where(scales == 255, np.nan, np.ldexp(1.0, scales.astype(np.int64) - 127)).astype(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        values: Array = CODES.astype(wide)[codes] * powers[..., None]
    return values.reshape(len(packed), -1)


def widened(values: Array, dtype: str, wide: np.dtype[Any]) -> Array:
    """Numbers of ``dtype`` (bf16 as uint16 bit patterns) in ``wide``."""
    if dtype == "bf16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        return values.astype(wide)


def narrowed(values: Array, dtype: str) -> Array:
    """fp32 or fp64 numbers rounded to ``dtype``, ties to even (bf16 as uint16 bit patterns; a NaN stays one)."""
    if dtype != "bf16":
        with np.errstate(over="ignore"):
            return values.astype({"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}[dtype])
    bits = values.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
