"""Formats against ggml's own bytes and floats (tests/data/golden) and the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from calling import DATA

from kernelmap.vocabulary import FORMATS
from kernelmap_providers import formats
from kernelmap_providers.formats import mxfp4_interleaved

GOLDEN = np.load(DATA / "golden" / "blocks.npz")
WEIGHTS = ("q4_k", "q5_k", "q6_k", "q8_0", "q5_1", "mxfp4")
ACTS = ("q8_k", "q8_0", "q8_1")


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


@pytest.mark.parametrize("name", formats.MODULES)
def test_sizes_are_the_vocabularys(name: str) -> None:
    module = formats.module_of(name)
    assert (FORMATS[name].block_values, FORMATS[name].block_bytes) == (module.VALUES, module.BYTES)


@pytest.mark.parametrize("name", WEIGHTS)
def test_decode_equals_ggml(name: str) -> None:
    rows, expected = GOLDEN[f"q_{name.upper()}"], GOLDEN[f"dq_{name.upper()}"]
    assert np.array_equal(bits(formats.decode(name, rows)), bits(expected))


@pytest.mark.parametrize("name", WEIGHTS)
def test_decode_of_any_codes_equals_the_gguf_package(name: str) -> None:
    rows = formats.random_rows(name, np.random.default_rng(3), (5, 7, 512))
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name.upper()])
    made = formats.decode(name, rows)
    assert made.shape == (5, 7, 512)
    assert np.array_equal(made, expected)
    assert np.isfinite(made).all() and np.abs(made).max() < 1


@pytest.mark.parametrize("name", ACTS)
def test_activation_bytes_are_ggmls(name: str) -> None:
    """Zero, tiny, huge, outlier, tied and half-way rows included; ties go to even."""
    made, refused = formats.module_of(name).quantize_rows(GOLDEN["act"])
    assert np.array_equal(made, GOLDEN[f"act_{name.upper()}"])
    overflows = [name == "q8_1" and str(kind).startswith("huge") for kind in GOLDEN["act_kinds"]]
    assert refused.tolist() == overflows


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_rows_with_nan_or_inf_are_refused(name: str, poison: float) -> None:
    rows = np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32)
    rows[2, 300] = poison
    _, refused = formats.module_of(name).quantize_rows(rows)
    assert refused.tolist() == [False, False, True, False]


@pytest.mark.parametrize("name", ACTS)
def test_a_block_too_small_for_its_inverse_is_zero(name: str) -> None:
    """127 / max overflows for subnormal rows: d = +0, codes 0."""
    rows = np.full((1, 256), 1e-40, np.float32)
    made, refused = formats.module_of(name).quantize_rows(rows)
    assert not refused[0]
    assert not made.any()


def test_q8_0_refuses_a_scale_beyond_fp16() -> None:
    rows = np.zeros((2, 32), np.float32)
    rows[:, 0] = 127 * 65519.0, 127 * 65520.0
    _, refused = formats.module_of("q8_0").quantize_rows(rows)
    assert refused.tolist() == [False, True]


def test_q8_k_takes_the_first_of_equal_extremes_and_stops_at_127() -> None:
    rows = np.zeros((2, 256), np.float32)
    rows[0, [5, 9]] = 4.0, -4.0
    rows[1, [5, 9]] = -4.0, 4.0
    d, codes, sums = formats.module_of("q8_k").fields(formats.module_of("q8_k").quantize_rows(rows)[0])
    assert codes[0, 0, [5, 9]].tolist() == [-127, 127]
    assert codes[1, 0, [5, 9]].tolist() == [-127, 127]
    assert (d[0, 0] < 0) and (d[1, 0] > 0)
    assert np.array_equal(sums.sum(axis=-1), codes.sum(axis=-1))


@pytest.mark.parametrize("name", [name for name in formats.MODULES if name != "mxfp4_interleaved"])
def test_first_bad_row_finds_a_scale_that_is_not_finite(name: str) -> None:
    module = formats.module_of(name)
    rows = formats.random_rows(name, np.random.default_rng(1), (3, 4, 512))
    assert formats.first_bad_row(name, rows) is None
    poison = {"f2": b"\x00\x7c", "f4": b"\x00\x00\xc0\x7f", "bf16": b"\x80\xff", "e8m0": b"\xff"}
    for offset, kind in module.SCALES:
        spoiled = rows.copy()
        at = spoiled.shape[-1] - module.BYTES + offset
        spoiled[1, 2, at : at + len(poison[kind])] = list(poison[kind])
        spoiled[2, 0] = spoiled[1, 2]
        assert formats.first_bad_row(name, spoiled) == (1, 2)


def test_the_two_mxfp4_layouts_hold_the_same_numbers_in_other_places() -> None:
    rows = formats.random_rows("mxfp4", np.random.default_rng(2), (6, 64))
    exponents, codes = formats.module_of("mxfp4").fields(rows)
    pairs = codes.reshape(6, 2, 16, 2)
    packed = (pairs[..., 0] | (pairs[..., 1] << 4)).reshape(6, 32)
    assert np.array_equal(mxfp4_interleaved.decode(packed, exponents), formats.decode("mxfp4", rows))
    with pytest.raises(ValueError, match="second tensor"):
        formats.decode("mxfp4_interleaved", packed)
    with pytest.raises(ValueError, match="one scale"):
        mxfp4_interleaved.decode(packed, exponents[:, :1])
    with pytest.raises(ValueError, match="multiple of 17"):
        formats.decode("mxfp4", packed)


def test_e8m0_limits() -> None:
    packed = np.full((1, 16), 0x71, np.uint8)  # 0.5, then 6
    assert mxfp4_interleaved.decode(packed, np.array([[0]], np.uint8))[0, :2].tolist() == [2.0**-128, 6 * 2.0**-127]
    assert np.isinf(mxfp4_interleaved.decode(packed, np.array([[254]], np.uint8))[0, 1])
    assert np.isnan(mxfp4_interleaved.decode(packed, np.array([[255]], np.uint8))).all()
    assert np.signbit(mxfp4_interleaved.decode(np.full((1, 16), 0x88, np.uint8), np.array([[127]], np.uint8))).all()


def test_float_formats_widen_exactly() -> None:
    patterns = np.arange(65536, dtype="<u2").view(np.uint8)[None]
    halves = formats.decode("fp16", patterns)[0]
    assert np.array_equal(halves, np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32), equal_nan=True)
    wide = formats.decode("bf16", patterns)[0]
    assert np.array_equal(bits(wide), np.arange(65536, dtype=np.uint32) << 16)


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 144"):
        formats.decode("q4_k", np.zeros((2, 145), np.uint8))
    with pytest.raises(ValueError, match="no module"):
        formats.module_of("q3_k")
