"""Legs alone, stored and packed, against ggml's recorded ``mul_mat_id`` (NUMERICS: comparing with ggml)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calling import DATA

from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.legs import act_of, packed_leg, quantize_leg, stored_leg
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.preparation.hooks import prepare_x8
from kernelmap_providers.simd import native
from kernelmap_providers.simd.target import host_form

Array = np.ndarray[Any, Any]
RECORDED = np.load(DATA / "golden" / "mmid.npz")
"""8 experts, K = 512, 12 tokens, top-3, the first 48 rows of each expert."""
VALUES, ROWS = 512, 48


@jit
def call(leg: int, words: int, first: int, last: int) -> int:
    return native.call_task(leg, words, first, last, 0)


def run(leg: int, words: dict[int, int], first: int = 0, last: int = 0) -> int:
    memory = np.zeros(at.LEG_BYTES // 8, np.int64)
    for offset, value in words.items():
        memory[offset // 8] = value
    return int(call(leg, memory.ctypes.data, first, last))


def quantized_rows(storage: str, x: Array) -> Array:
    values, nbytes = act_of(storage)
    blocks = VALUES // values
    out = np.zeros((len(x), blocks * nbytes), np.uint8)
    words = {at.LEG_X: x.ctypes.data, at.LEG_X_STRIDE: 4 * VALUES, at.LEG_BLOCKS: blocks, at.LEG_OUT: out.ctypes.data}
    assert run(quantize_leg(storage), words, 0, len(x) * blocks) == at.NO_ROW
    return out


@pytest.mark.parametrize("form", ["stored", "packed"])
@pytest.mark.parametrize("storage", ["q4_k", "q5_k", "q6_k", "q8_0", "mxfp4", "q5_1"])
def test_legs_against_recorded_mul_mat_id(storage: str, form: str) -> None:
    """All tokens of an expert at once, through an index list, into rows named by another."""
    weight, ids = RECORDED[f"{storage}/weight"], RECORDED[f"{storage}/ids"]
    reference = RECORDED[f"{storage}/y"]
    acts = quantized_rows(storage, np.ascontiguousarray(RECORDED[f"{storage}/x"]))
    if form == "packed":
        source = np.ascontiguousarray(weight)
        made = prepare_x8(source, source_format=storage, prepared_format=f"{storage}_x8", shape=(8, ROWS, VALUES))
        leg, data = packed_leg(f"{storage}_x8", host_form()), made.data
    else:
        leg, data = stored_leg(storage, host_form()), np.ascontiguousarray(weight)
    y = np.zeros((36, ROWS), np.float32)
    for expert in range(8):
        pairs = np.flatnonzero(ids.reshape(-1) == expert).astype(np.int32)
        tokens = (pairs // 3).astype(np.int32)
        words = {
            at.LEG_WEIGHTS: data[expert].ctypes.data, at.LEG_WEIGHT_STRIDE: data.strides[1], at.LEG_ROWS: ROWS,
            at.LEG_ACTS: acts.ctypes.data, at.LEG_ACT_INDEX: tokens.ctypes.data, at.LEG_ACT_STRIDE: acts.shape[1],
            at.LEG_OUT: y.ctypes.data, at.LEG_OUT_STRIDE: 4 * ROWS, at.LEG_OUT_INDEX: pairs.ctypes.data,
            at.LEG_TOKENS: len(pairs),
        }  # fmt: skip
        run(leg, words)
    error = np.abs(y.reshape(12, 3, ROWS).astype(np.float64) - reference)
    assert error.max() <= 5e-6 * np.sqrt((reference.astype(np.float64) ** 2).mean())


def test_formats_without_a_leg_are_refused() -> None:
    for storage in ("q2_k", "q4_0", "bf16"):
        with pytest.raises(ValueError, match="no leg"):
            stored_leg(storage, host_form())
