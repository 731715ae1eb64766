"""Selection: the K largest in order, whichever way finds them, and ties that rounding makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calling import SIGMOID, SOFTMAX, Subject

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.routers import topk
from kernelmap_providers.routers.words import WORKER_BYTES
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.vectors import F32X16, I32X16

Array = np.ndarray[Any, Any]
KINDS = ("random", "ties", "equal", "rising", "falling", "crowded")


def keys_of(kind: str, size: int) -> Array:
    rng = np.random.default_rng(size)
    made = {
        "random": rng.integers(-(2**31) + 1, 2**31, size),
        "ties": rng.integers(-2, 3, size),
        "equal": np.full(size, -7),
        "rising": np.arange(size) - size // 2,
        "falling": np.arange(size)[::-1] - size // 2,
        # All large keys lie in one lane of the vectors: the bound from the other lanes is far too low.
        "crowded": np.where(np.arange(size) % 16 == 3, 10**6 + rng.integers(0, 99, size), rng.integers(0, 5, size)),
    }
    return made[kind].astype(np.int32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [64, 128, 512])
def test_largest_is_a_stable_sort(kind: str, size: int) -> None:
    keys = keys_of(kind, size)
    expected = np.argsort(-keys.astype(np.int64), kind="stable")
    for count in (1, 2, 7, 8, 9, 15, 16, 17, 40, 64):
        mine, work, out = keys.copy(), np.zeros(WORKER_BYTES, np.uint8), np.full(count + 1, -9, np.int32)
        topk.largest(mine.ctypes.data, size, count, work.ctypes.data, out.ctypes.data)
        assert np.array_equal(out[:count], expected[:count]), count
        assert out[count] == -9


@jit
def _keys(x: int, out: int, count: int) -> None:
    for i in range(0, count, 16):
        ops.store(out + 4 * i, topk.key_of(ops.load(F32X16, x + 4 * i)))


def test_keys_have_the_order_of_floats() -> None:
    small, large = np.float32(1e-45), np.float32(3e38)
    x = np.array([-np.inf, -large, -1, -small, -0.0, 0.0, small, 1, large, np.inf], np.float32)
    x = np.pad(x, (0, 6))
    out = np.zeros(16, np.int32)
    _keys(x.ctypes.data, out.ctypes.data, 16)
    assert (out[1:4] > out[:3]).all() and out[4] == out[5] and (out[5:10] > out[[3, 5, 6, 7, 8]]).all()
    assert out.min() > topk.LOWEST


@pytest.mark.parametrize("experts", [40, 64, 256])
def test_probabilities_that_rounding_makes_equal_go_to_the_lower_id(experts: int) -> None:
    """Large logits one step apart and tiny probabilities: exponentials differ where quotients do not."""
    rng = np.random.default_rng(experts)
    rows = [rng.integers(0, 3, experts) * np.float32(2.0**-23) - rng.integers(0, 2, experts) * 5 for _ in range(60)]
    rows += [rng.permutation(experts) * np.float32(2.0**-24) - (np.arange(experts) % 7 > 0) * 3 for _ in range(60)]
    rows += [np.where(np.arange(experts) == 5, 0, -95 - rng.random(experts) * 9) for _ in range(20)]
    rows += [np.where(np.arange(experts) == 5, 0, -70 - rng.random(experts) * 1e-5) for _ in range(20)]
    logits = np.array(rows, np.float32)
    subject = Subject(SOFTMAX, {"E": experts, "K": 8}, {"scale": 1.0})
    expected = subject.oracle(logits=logits)
    p = np.exp(logits - logits.max(1, keepdims=True))
    assert any(len(np.unique(row)) < experts for row in p.astype(np.float32))
    status, made = subject.call({"logits": logits}, "parallel_rows", 2)
    assert status == 0
    for name, array in expected.items():
        assert made[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("size", [2, 3, 16, 17, 32])
def test_groups_of_any_size_rank_by_their_two_largest(size: int) -> None:
    """Whole vectors and single values, the largest twice in a lane, in one vector, and at a group's ends."""
    groups, rng = 6, np.random.default_rng(size)
    logits = rng.integers(-2, 3, (64, groups * size)).astype(np.float32)
    bias = (rng.integers(-1, 2, groups * size) * 0.25).astype(np.float32)
    params = {"n_group": groups, "topk_group": 3, "renormalize": "none", "scale": 1.0}
    subject = Subject(SIGMOID, {"E": groups * size, "K": 5}, params)
    expected = subject.oracle(logits=logits, correction_bias=bias)
    status, made = subject.call({"logits": logits, "correction_bias": bias}, "parallel_rows", 2)
    assert status == 0
    for name, array in expected.items():
        assert made[name].tobytes() == array.tobytes(), name


@jit
def _bits(x: int, below: int) -> Any:
    mask = ops.less(ops.load(I32X16, x), ops.fill(I32X16, np.int32(below)))
    bits = ops.mask_bits(mask)
    return bits, ops.trailing_zeros(bits)


def test_mask_bits_and_trailing_zeros() -> None:
    x = np.arange(16, dtype=np.int32)[::-1].copy()
    assert _bits(x.ctypes.data, 0) == (0, 64)
    assert _bits(x.ctypes.data, 1) == (1 << 15, 15)
    assert _bits(x.ctypes.data, 16) == (0xFFFF, 0)
