"""Each vector operation against numpy, on edge values, in every form that runs here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from kernelmap_providers.simd import ops
from kernelmap_providers.simd.static import Static
from kernelmap_providers.simd.target import FORMS, best_form, compiled_features
from kernelmap_providers.simd.vectors import F16X8, F32X8, I8X16, I8X32, I16X16, I32X8

X86 = ("avx512vnni", "avxvnni", "avx2")
RUNNABLE = [name for name, form in FORMS.items() if set(form.features) <= compiled_features()]
I8_EDGES = np.array([-128, -127, -1, 0, 1, 2, 63, 64, 126, 127], np.int8)
F32_EDGES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-45, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 7,
                      -7], np.float32)  # fmt: skip


@njit
def _dot4(form: Any, acc: Any, w: Any, x: Any, out: Any) -> None:
    total = ops.load(I32X8, acc.ctypes.data)
    result = ops.dot4(form, total, ops.load(I8X32, w.ctypes.data), ops.load(I8X32, x.ctypes.data))
    ops.store(out.ctypes.data, result)


@njit
def _dot2(form: Any, acc: Any, a: Any, b: Any, out: Any) -> None:
    total = ops.load(I32X8, acc.ctypes.data)
    result = ops.dot2(form, total, ops.load(I16X16, a.ctypes.data), ops.load(I16X16, b.ctypes.data))
    ops.store(out.ctypes.data, result)


@njit
def _table(form: Any, index: Any, out: Any) -> None:
    ops.store(out.ctypes.data, ops.table16(form, TABLE, ops.load(I8X32, index.ctypes.data)))


@njit
def _widen(form: Any, half: Any, out: Any) -> None:
    ops.store(out.ctypes.data, ops.widen_half(form, ops.load(F16X8, half.ctypes.data)))


TABLE = Static(0, 1, 2, 3, 4, 6, 8, 12, 128, 127, 255, 254, 253, 252, 200, 201)


def _pairs(rng: np.random.Generator, values: np.ndarray, count: int) -> np.ndarray:
    return values[rng.integers(0, len(values), count)]


@pytest.mark.parametrize("name", [name for name in RUNNABLE if FORMS[name].wide_dot])
def test_dot4_is_exact(name: str) -> None:
    """Unsigned times signed where the form biases weights, else signed times signed; no saturation anywhere."""
    rng = np.random.default_rng(0)
    unsigned = FORMS[name].bias == 128
    for _ in range(200):
        w = _pairs(rng, I8_EDGES, 32)
        x = _pairs(rng, I8_EDGES, 32)
        acc = rng.integers(-(2**30), 2**30, 8).astype(np.int32)
        wide = w.view(np.uint8).astype(np.int64) if unsigned else w.astype(np.int64)
        expected = acc + (wide * x.astype(np.int64)).reshape(8, 4).sum(axis=1)
        out = np.zeros(8, np.int32)
        _dot4(Static(name), acc, w, x, out)
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("name", RUNNABLE)
def test_dot2_is_exact(name: str) -> None:
    rng = np.random.default_rng(1)
    edges = np.array([-32768, -32767, -1, 0, 1, 255, 32767], np.int16)
    for _ in range(200):
        a, b = _pairs(rng, edges, 16), _pairs(rng, edges, 16)
        b[b == -32768] = 32767  # twice (-32768)^2 is the one pair sum beyond int32
        acc = rng.integers(-1000, 1000, 8).astype(np.int32)
        out = np.zeros(8, np.int32)
        _dot2(Static(name), acc, a, b, out)
        expected = acc + (a.astype(np.int64) * b).reshape(8, 2).sum(axis=1)
        assert np.array_equal(out, expected.astype(np.int32))


@pytest.mark.parametrize("name", RUNNABLE)
def test_table_lookup(name: str) -> None:
    index = np.tile(np.arange(16, dtype=np.uint8), 2)
    out = np.zeros(32, np.uint8)
    _table(Static(name), index, out)
    assert np.array_equal(out, np.array(TABLE.parts, np.uint8)[index])


@pytest.mark.parametrize("name", RUNNABLE)
def test_widening_every_half(name: str) -> None:
    halves = np.arange(65536, dtype=np.uint16)
    out = np.zeros(65536, np.float32)
    for start in range(0, 65536, 8):
        _widen(Static(name), halves[start : start + 8], out[start : start + 8])
    expected = halves.view(np.float16).astype(np.float32)
    assert np.array_equal(np.isnan(out), np.isnan(expected))
    finite = ~np.isnan(expected)
    assert np.array_equal(out[finite].view(np.int32), expected[finite].view(np.int32))


@njit
def _pmaddubsw(form: Any, u: Any, s: Any, out: Any) -> None:
    result = ops.multiply_add_pairs8(form, ops.load(I8X32, u.ctypes.data), ops.load(I8X32, s.ctypes.data))
    ops.store(out.ctypes.data, result)


@pytest.mark.skipif("avx2" not in RUNNABLE, reason="an x86 instruction")
def test_pair_products_saturate_only_beyond_what_kernels_use() -> None:
    """128 x 127 twice, the largest pair in any format, is exact; 255 x 127 twice saturates: why q8_0 uses signs."""
    out = np.zeros(16, np.int16)
    s = np.full(32, 127, np.int8)
    _pmaddubsw(Static("avx2"), np.full(32, 128, np.uint8), s, out)
    assert (out == 2 * 128 * 127).all()
    _pmaddubsw(Static("avx2"), np.full(32, 255, np.uint8), s, out)
    assert (out == 32767).all()


@njit
def _floats(a: Any, b: Any, out: Any) -> None:
    x, y = ops.load(F32X8, a.ctypes.data), ops.load(F32X8, b.ctypes.data)
    ops.store(out[0].ctypes.data, ops.add(x, y))
    ops.store(out[1].ctypes.data, ops.sub(x, y))
    ops.store(out[2].ctypes.data, ops.mul(x, y))
    ops.store(out[3].ctypes.data, ops.div(x, y))
    ops.store(out[4].ctypes.data, ops.rint(x))
    ops.store(out[5].ctypes.data, ops.minimum(x, y))
    ops.store(out[6].ctypes.data, ops.maximum(x, y))
    ops.store(out[7].ctypes.data, ops.select(ops.less(x, y), x, y))
    ops.store(out[8].ctypes.data, ops.convert(F32X8, ops.equal(x, y)))


def test_float_lanes_round_as_numpy() -> None:
    rng = np.random.default_rng(2)
    out = np.zeros((9, 8), np.float32)
    for _ in range(100):
        a, b = _pairs(rng, F32_EDGES, 8), _pairs(rng, F32_EDGES, 8)
        _floats(a, b, out)
        with np.errstate(all="ignore"):
            less = np.where(a < b, a, b)
            expected = [a + b, a - b, a * b, a / b, np.rint(a), less, np.where(a > b, a, b), less,
                        -(a == b).astype(np.float32)]  # fmt: skip
        for row, want in zip(out, expected, strict=True):
            assert np.array_equal(row, want.astype(np.float32), equal_nan=True)


@njit
def _integers(a: Any, b: Any, out: Any) -> Any:
    x, y = ops.load(I32X8, a.ctypes.data), ops.load(I32X8, b.ctypes.data)
    ops.store(out[0].ctypes.data, ops.add(x, y))
    ops.store(out[1].ctypes.data, ops.sub(x, y))
    ops.store(out[2].ctypes.data, ops.mul(x, y))
    ops.store(out[3].ctypes.data, ops.bit_and(x, y))
    ops.store(out[4].ctypes.data, ops.bit_or(x, y))
    ops.store(out[5].ctypes.data, ops.bit_xor(x, y))
    ops.store(out[6].ctypes.data, ops.shift_left(x, 5))
    ops.store(out[7].ctypes.data, ops.shift_right(x, 5))
    ops.store(out[8].ctypes.data, ops.shift_right_signed(x, 5))
    ops.store(out[9].ctypes.data, ops.fold8(x, y, x, y, x, y, x, x))
    return ops.reduce_add(x), ops.reduce_max(x), ops.reduce_or(x), ops.lane(x, 3)


def test_integer_lanes_wrap_as_numpy() -> None:
    rng = np.random.default_rng(3)
    edges = np.array([-(2**31), -(2**31) + 1, -1, 0, 1, 2, 65535, 2**31 - 1], np.int32)
    out = np.zeros((10, 8), np.int32)
    for _ in range(100):
        a, b = _pairs(rng, edges, 8), _pairs(rng, edges, 8)
        total, largest, union, third = _integers(a, b, out)
        u = a.view(np.uint32)
        sums = [a.sum(dtype=np.int32) if even else b.sum(dtype=np.int32) for even in (1, 0, 1, 0, 1, 0, 1, 1)]
        expected = [a + b, a - b, a * b, a & b, a | b, a ^ b, a << 5, (u >> 5).view(np.int32), a >> 5,
                    np.array(sums, np.int32)]  # fmt: skip
        for row, want in zip(out, expected, strict=True):
            assert np.array_equal(row, want)
        assert (total, largest, union, third) == (a.sum(dtype=np.int32), a.max(), np.bitwise_or.reduce(a), a[3])


@njit
def _lanes(bytes_in: Any, out16: Any, out32: Any, back: Any, rounded: Any) -> Any:
    b = ops.load(I8X16, bytes_in.ctypes.data)
    ops.store(out16[0].ctypes.data, ops.convert(I16X16, b))
    ops.store(out16[1].ctypes.data, ops.widen_unsigned(I16X16, b))
    wide = ops.convert(I32X8, ops.low_half(b))
    ops.store(out32[0].ctypes.data, wide)
    ops.store(out32[1].ctypes.data, ops.shuffle(wide, REVERSED))
    ops.store(back.ctypes.data, ops.convert(I8X16, ops.join(wide, ops.convert(I32X8, ops.high_half(b)))))
    ops.store(rounded.ctypes.data, ops.convert(F32X8, ops.load(I32X8, rounded.ctypes.data)))
    return ops.load_i32(out32.ctypes.data), ops.load_f32(rounded.ctypes.data), ops.round_to_half(0.1)


REVERSED = Static(7, 6, 5, 4, 3, 2, 1, 0)


def test_conversions_and_shuffles() -> None:
    data = np.tile(I8_EDGES, 2)[:16].copy()
    out16, out32, back = np.zeros((2, 16), np.int16), np.zeros((2, 8), np.int32), np.zeros(16, np.int8)
    big = np.array([16777217, 16777219, -16777217, 2**31 - 1, 0, 1, -1, 33554435], np.int32)
    rounded = big.view(np.float32).copy()
    _, _, half = _lanes(data, out16, out32, back, rounded)
    assert np.array_equal(out16[0], data)
    assert np.array_equal(out16[1].view(np.uint16), data.view(np.uint8))
    assert np.array_equal(out32[0], data[:8])
    assert np.array_equal(out32[1], data[:8][::-1])
    assert np.array_equal(back, data)
    assert np.array_equal(rounded, big.astype(np.float32))
    assert half == np.float32(np.float16(0.1))


def test_the_best_form_follows_the_features() -> None:
    assert best_form(()).name == "portable"
    assert best_form({"avx2", "f16c", "fma"}).name == "avx2"
    assert best_form({"avx2", "f16c", "avxvnni"}).name == "avxvnni"
    assert best_form({"neon", "dotprod"}).name == "neon_dotprod"
    assert best_form(set(FORMS["avx512vnni"].features) | {"avx2", "f16c", "avxvnni"}).name == "avx512vnni"
    assert best_form(set(FORMS["avx512vnni"].features) - {"avx512vnni"} | {"avx2", "f16c"}).name == "avx2"


def test_float_sums_are_refused() -> None:
    @njit
    def total(a: Any) -> Any:
        return ops.reduce_add(ops.load(F32X8, a.ctypes.data))

    with pytest.raises(Exception, match="floating-point reduction has an order"):
        total(np.zeros(8, np.float32))
