"""Weight quantizers: rms error against ggml's recorded bytes, representable rows, edge rows, refusals."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import gguf
import numpy as np
import pytest

from kernelmap.vocabulary import FORMATS
from kernelmap_providers.formats import decode, k_scales, module_of, random_rows
from kernelmap_providers.formats.bits import join
from kernelmap_providers.formats.encode import FORMATS_ENCODED, encode

GOLDEN = Path(__file__).parents[1] / "data/golden/blocks.npz"
K_QUANTS = ("q4_k", "q5_k", "q6_k")
BLOCKED = ("mxfp4", "q5_1", "q8_0", *K_QUANTS)
NUMBERS = ("bf16", "fp16")
LIMITS = {
    "q8_0": 65504.0 * 127,
    "q5_1": 65504.0,
    "q4_k": 65504.0 * 63,
    "q5_k": 65504.0 * 63,
    "q6_k": 65504.0 * 128 * 30,
}
"""Magnitudes that a row with both signs may have: beyond, a scale or minimum leaves fp16. q6_k's fits may end at 30."""


def rms(values: Any) -> Any:
    return np.sqrt(np.mean(np.square(values.astype(np.float64)), axis=-1))


def normal(rows: int, k: int, seed: int = 0) -> Any:
    return (0.02 * np.random.default_rng(seed).standard_normal((rows, k))).astype(np.float32)


@pytest.mark.parametrize("name", BLOCKED)
def test_rms_error_is_at_most_that_of_ggml_by_5_percent_on_every_recorded_row(name: str) -> None:
    with np.load(GOLDEN) as golden:
        values, theirs = golden[f"w_{name.upper()}"], golden[f"q_{name.upper()}"]
    ours = rms(decode(name, encode(name, values)) - values)
    recorded = rms(decode(name, theirs) - values)
    assert np.all(ours <= 1.05 * recorded)
    assert rms(ours) <= 1.05 * rms(recorded)


@pytest.mark.parametrize("name", ["mxfp4", "q5_1", "q8_0"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_bytes_are_the_gguf_packages_where_it_has_the_format(name: str, size: float) -> None:
    values = normal(16, 512) * np.float32(size)
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(encode(name, values), theirs)


def test_mxfp4_ties_take_the_smaller_magnitude_as_gguf_does() -> None:
    grid = np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7.9], np.float32)
    values = np.concatenate([grid, -grid])[None]
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(encode("mxfp4", values), theirs)


def test_k_quants_beat_the_plain_rounding_of_every_sub_block_to_its_range() -> None:
    values = normal(8, 1024)
    sub = values.reshape(8, -1, 32).astype(np.float64)
    low = sub.min(axis=-1, keepdims=True)
    step = (sub.max(axis=-1, keepdims=True) - low) / 15
    # Steps and minima in full precision, where q4_k has 6 bits.
    plain = np.rint((sub - low) / step) * step + low - sub
    ours = decode("q4_k", encode("q4_k", values)) - values
    assert rms(ours.ravel()) < rms(plain.ravel())


def full_rows(name: str, rng: np.random.Generator, rows: int, blocks: int) -> Any:
    """Random rows whose scales, minima and codes all reach their ends, so that a fit can recover them."""
    made = random_rows(name, rng, (rows, blocks * FORMATS[name].block_values)).reshape(rows, blocks, -1)
    if name == "q8_0":
        made[..., 2] = 127
        made[..., 3:][made[..., 3:] == 128] = 129
    elif name == "q5_1":
        made[..., 0:4] = np.array([2.0**-6, -0.3], "<f2").view(np.uint8)
        # Value 0 has code 0 and value 1 code 31.
        made[..., 4], made[..., 8], made[..., 9] = made[..., 4] & 0xFC | 2, made[..., 8] & 0xF0, made[..., 9] | 15
    elif name == "q6_k":
        made[..., 208:210] = np.array([2.0**-9], "<f2").view(np.uint8)
        made[..., 192] = 128
        # The first value of each sub-block has code -32: all its bits clear.
        made[..., 0:192:16] = 0
    elif name in ("q4_k", "q5_k"):
        fill_affine(name, rng, made)
    return made.reshape(rows, -1)


def fill_affine(name: str, rng: np.random.Generator, made: Any) -> None:
    """The ends of q4_k and q5_k blocks ``[rows, blocks, bytes]``."""
    # Not both below zero: where such a block straddles zero the search does not try it.
    signs = np.array([[1, 1], [1, -1], [-1, 1]])[rng.integers(0, 3, made.shape[:-1])]
    made[..., 0:4] = (signs * [0.0123, 0.0456]).astype("<f2").view(np.uint8)
    # Scale and minimum 63 in sub-block 0, and no scale near zero.
    made[..., 4], made[..., 8] = 63, 63
    made[..., 5:8] |= 32
    made[..., 12:16] |= 8
    # Value 0 of each sub-block has code 0, value 1 the highest.
    start = 16 if name == "q4_k" else 48
    made[..., start::32], made[..., start + 1 :: 32] = 0, 255
    if name == "q5_k":
        made[..., 16], made[..., 17] = 0, 255


@pytest.mark.parametrize("name", BLOCKED)
def test_rows_that_reach_every_end_are_recovered_exactly(name: str) -> None:
    values = decode(name, full_rows(name, np.random.default_rng(3), 16, 3))
    again = decode(name, encode(name, values))
    assert np.all(rms(again - values) <= 1e-6 * rms(values))


@pytest.mark.parametrize("name", BLOCKED)
def test_random_representable_rows_lose_far_less_than_others(name: str) -> None:
    rng = np.random.default_rng(4)
    values = decode(name, random_rows(name, rng, (32, 1024)))
    again = decode(name, encode(name, values))
    drawn = (rng.standard_normal(values.shape) * rms(values)[:, None]).astype(np.float32)
    usual = rms(decode(name, encode(name, drawn)) - drawn)
    # Codes or scales short of an end shift the grid: gguf's rules for q8_0 and q5_1 follow the extremes only.
    most = {"mxfp4": 0.0, "q8_0": 0.8, "q5_1": 0.8}.get(name, 0.5)
    assert np.all(rms(again - values) <= most * usual)


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, 0.37, -2.5])
def test_constant_rows(name: str, value: float) -> None:
    values = np.full((2, 512), value, np.float32)
    again = decode(name, encode(name, values))
    assert np.abs(again - values).max() <= (0.25 if name == "mxfp4" else 2e-3) * abs(value)


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("exponent", range(-149, -8, 4))
def test_tiny_rows_stay_finite_and_no_larger_than_a_smallest_step_off(name: str, exponent: int) -> None:
    values = np.ldexp(normal(2, 512) * 50, exponent).astype(np.float32)
    again = decode(name, encode(name, values))
    assert np.isfinite(again).all()
    step = {"mxfp4": 2.0**-128, "q8_0": 127 * 2.0**-25, "q5_1": 2.0**-20}.get(name, 2.0**-24)
    relative = {"mxfp4": 0.5, "q8_0": 0.01, "q5_1": 0.1}.get(name, 0.2)
    assert np.abs(again - values).max() <= step + relative * np.abs(values).max()


@pytest.mark.parametrize("name", BLOCKED)
def test_outlier_and_sparse_rows(name: str) -> None:
    values = normal(6, 512)
    values[0, 5], values[1, 300], values[2, 0] = 30.0, -30.0, 1e4
    values[3:] *= (np.arange(512) % 97 == 0).astype(np.float32)
    again = decode(name, encode(name, values))
    assert np.isfinite(again).all()
    most = 0.26 if name == "mxfp4" else 0.03
    assert np.all(np.abs(again - values).max(axis=-1) <= most * np.abs(values).max(axis=-1))


@pytest.mark.parametrize("name", K_QUANTS)
@pytest.mark.parametrize("middle", [5.0, -5.0])
def test_rows_on_one_side_of_zero_are_as_good_as_the_format_allows(name: str, middle: float) -> None:
    values = normal(4, 512) + np.float32(middle)
    again = decode(name, encode(name, values))
    # A minimum is stored to 1/126 of the largest; q6_k has none, and its steps are 1/32 of the largest value.
    assert np.all(rms(again - values) < 0.02 * abs(middle))


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_large_rows_are_held_up_to_the_limit_and_refused_beyond(name: str, limit: float) -> None:
    values = np.clip(np.random.default_rng(5).standard_normal((3, 512)), -1, 1).astype(np.float32)
    values[:, ::32], values[:, 1::32] = -1, 1
    held = values * np.float32(0.97 * limit)
    assert np.isfinite(decode(name, encode(name, held))).all()
    held[1, 256:] *= np.float32(2e5)
    with pytest.raises(ValueError, match=rf"{name}: row \(1,\) has values too large"):
        encode(name, held)


def test_signs_of_d_and_dmin_hold_large_one_sided_rows() -> None:
    ramp = np.linspace(4e7, 6e7, 256, dtype=np.float32)
    for values in (ramp, -ramp):
        again = decode("q4_k", encode("q4_k", values))
        assert rms(again - values) < 0.05 * rms(values)


def test_mxfp4_holds_the_largest_fp32() -> None:
    values = np.full(32, np.finfo(np.float32).max, np.float32)
    again = decode("mxfp4", encode("mxfp4", values))
    assert np.isfinite(again).all() and np.all(again >= 0.7 * values)


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused_with_their_row(name: str, bad: float) -> None:
    values = normal(6, 512).reshape(2, 3, 512)
    values[1, 2, 511] = bad
    with pytest.raises(ValueError, match=rf"{name}: row \(1, 2\) has a NaN or an infinity"):
        encode(name, values)


def test_calls_that_cannot_be_served_are_refused() -> None:
    with pytest.raises(ValueError, match="'q8_k' has no encoder"):
        encode("q8_k", normal(1, 256))
    with pytest.raises(ValueError, match="multiple of 256"):
        encode("q4_k", normal(1, 128))
    with pytest.raises(ValueError, match="values to encode are fp32"):
        encode("q4_k", np.zeros((1, 256)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMATS_ENCODED)
def test_shapes_views_and_empty_tensors(name: str) -> None:
    values = normal(24, 512).reshape(2, 3, 4, 512)
    whole = encode(name, values)
    assert whole.dtype == np.uint8 and whole.shape == (2, 3, 4, FORMATS[name].row_bytes(512))
    # A row's bytes do not depend on its neighbours, nor on strides.
    np.testing.assert_array_equal(encode(name, values[1, :, ::2]), whole[1, :, ::2])
    np.testing.assert_array_equal(encode(name, values[0, 0, 0]), whole[0, 0, 0])
    assert encode(name, values[:, :0]).shape == (2, 0, 4, whole.shape[-1])
    assert encode(name, values[..., :0]).shape == (2, 3, 4, 0)


@pytest.mark.parametrize("name", K_QUANTS)
def test_fields_and_codes_are_all_used(name: str) -> None:
    fields = module_of(name).fields(encode(name, normal(16, 1024)))
    codes = np.asarray(fields[-1], np.int64)
    low, high = {"q4_k": (0, 15), "q5_k": (0, 31), "q6_k": (-32, 31)}[name]
    assert set(np.unique(codes)) == set(range(low, high + 1))


def test_k_scales_survive_packing() -> None:
    rows = encode("q4_k", normal(4, 512) + np.linspace(-0.1, 0.1, 512, dtype=np.float32)).reshape(-1, 144)
    scales, minima = k_scales.unpack(rows[:, 4:16])
    assert scales.max() > 48 and minima.max() > 48 and join(scales, minima).max() < 64


def test_fp16_and_bf16_round_to_nearest_even_and_keep_nan() -> None:
    values = np.array([1.0, 1 + 2**-11, 1 + 3 * 2**-11, 2.0**-25, -0.0, np.nan, np.inf, -np.inf], np.float32)
    made = encode("fp16", values).view("<f2")
    np.testing.assert_array_equal(made, np.array([1, 1, 1 + 2**-9, 0, -0.0, np.nan, np.inf, -np.inf], "<f2"))
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0xFFFFFFFF, 0x00008001, 0x7F800000], np.uint32)
    halves = encode("bf16", bits.view(np.float32)).view("<u2")
    assert [hex(item) for item in halves] == ["0x3f80", "0x3f82", "0x3f81", "0x7fc0", "0xffff", "0x1", "0x7f80"]


@pytest.mark.parametrize(("name", "most", "beyond"), [("fp16", 65519.0, 65520.0), ("bf16", 3.38e38, 3.4e38)])
def test_numbers_that_would_round_to_infinity_are_refused(name: str, most: float, beyond: float) -> None:
    assert np.isfinite(decode(name, encode(name, np.array([most, -most], np.float32)))).all()
    with pytest.raises(ValueError, match=rf"{name}: row \(1,\)"):
        encode(name, np.array([[most], [-beyond]], np.float32))


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_exact_on_what_they_hold(name: str) -> None:
    rows = random_rows(name, np.random.default_rng(6), (4, 100))
    np.testing.assert_array_equal(encode(name, decode(name, rows)), rows)


@pytest.mark.parametrize("name", K_QUANTS)
def test_time_grows_with_the_values_and_no_faster(name: str) -> None:
    def best(rows: int) -> float:
        values, taken = normal(rows, 4096), []
        for _ in range(3):
            start = perf_counter()
            encode(name, values)
            taken.append(perf_counter() - start)
        return min(taken)

    # Twice the share is allowed: the machine may be busy. Quadratic growth would be 8 times.
    assert best(256) < 16 * best(32)
