"""Packing moves every number to the place that the layout's diagram names, and loses none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from kernelmap_providers.formats import mxfp4, q4_k, q5_1, q5_k, q6_k, q8_0, random_rows
from kernelmap_providers.packed.layouts import PACKED_FORMATS, PACKED_OF, pack_rows, unpack_rows
from kernelmap_providers.packed.weight import aligned_bytes

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[np.generic]
ROWS = 11


def packed(name: str, rows: Bytes, values: int) -> Bytes:
    fmt = PACKED_OF[name]
    groups = -(-len(rows) // 8)
    out = aligned_bytes(groups * fmt.group_bytes(values)).reshape(groups, -1)
    assert out.size == fmt.packed_bytes(len(rows), values)
    pack_rows(fmt, rows, out)
    return out


def blocks(name: str, data: Bytes, values: int) -> tuple[Bytes, Bytes]:
    """Heads and bodies ``[groups, blocks, bytes]``."""
    fmt = PACKED_OF[name]
    count = values // fmt.values
    if not fmt.planar:
        whole = data.reshape(len(data), count, -1)
        return whole[..., : fmt.head_bytes], whole[..., fmt.head_bytes :]
    start = -(-count * fmt.head_bytes // 64) * 64
    bodies = data[:, start : start + count * fmt.body_bytes]
    return data[:, : count * fmt.head_bytes].reshape(len(data), count, -1), bodies.reshape(len(data), count, -1)


def by_row(values: Array, axis: int) -> Array:
    """The axis of eight rows to the front and joined with the groups; padding rows cut."""
    moved = np.moveaxis(values, axis, 1)
    return moved.reshape(-1, *moved.shape[2:])[:ROWS]


def steps(low: Bytes, high: Bytes) -> Bytes:
    """``[..., 4, 8 rows, 4]`` nibbles of groups g and g + 4 as ``[..., 8 rows, 32 values]``."""
    both = np.concatenate([low, high], axis=-3)
    return np.moveaxis(both, -2, -3).reshape(*both.shape[:-3], 8, 32)


def nibble_stage(body: Bytes) -> Bytes:
    place = body.reshape(*body.shape[:-1], 4, 8, 4)
    return steps(place & 15, place >> 4)


def fifth_bits(body: Bytes) -> Bytes:
    """``[..., 32]`` bytes of 8 rows as bits ``[..., 8 rows, 32 values]``."""
    place = body.reshape(*body.shape[:-1], 8, 1, 4)
    bits = place >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return bits.reshape(*bits.shape[:-2], 32)


def halves(head: Bytes, offset: int) -> Array:
    found = np.ascontiguousarray(head[..., offset : offset + 16]).view(np.float16).astype(np.float32)
    return by_row(found, 2)


def scaled_min(name: str, fields: Callable[[Bytes], tuple[Array, ...]], rows: Bytes) -> None:
    d, dmin, scales, minima, codes = fields(rows)
    head, body = blocks(name, packed(name, rows, 512), 512)
    assert np.array_equal(halves(head, 0), d)
    assert np.array_equal(halves(head, 16), dmin)
    assert np.array_equal(by_row(head[..., 32:96].reshape(*head.shape[:2], 8, 8), 3), scales)
    pairs = by_row(head[..., 96:160].reshape(*head.shape[:2], 4, 8, 2), 3)
    assert np.array_equal(pairs.reshape(*pairs.shape[:2], 8), minima)
    stages = body.reshape(*body.shape[:2], 8, -1)
    found = nibble_stage(stages[..., :128])
    if name == "q5_k":
        found = found | fifth_bits(stages[..., 128:160]) << 4
    assert np.array_equal(by_row(found, 3).reshape(codes.shape), codes)


def test_q4_k() -> None:
    scaled_min("q4_k", q4_k.fields, random_rows("q4_k", np.random.default_rng(0), (ROWS, 512)))


def test_q5_k() -> None:
    scaled_min("q5_k", q5_k.fields, random_rows("q5_k", np.random.default_rng(1), (ROWS, 512)))


def test_q6_k() -> None:
    rows = random_rows("q6_k", np.random.default_rng(2), (ROWS, 512))
    d, scales, codes = q6_k.fields(rows)
    head, body = blocks("q6_k", packed("q6_k", rows, 512), 512)
    assert np.array_equal(halves(head, 0), d)
    pairs = by_row(np.ascontiguousarray(head[..., 16:144]).view(np.int8).reshape(*head.shape[:2], 8, 8, 2), 3)
    assert np.array_equal(pairs.reshape(scales.shape), scales)
    stages = body.reshape(*body.shape[:2], 8, 192)
    low = stages[..., :128].reshape(*stages.shape[:3], 4, 1, 8, 4)
    low = np.concatenate([low & 15, low >> 4], axis=4).reshape(*stages.shape[:3], 8, 8, 4)
    high = stages[..., 128:].reshape(*stages.shape[:3], 2, 1, 8, 4)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None, None]
    high = (high >> shifts & 3).reshape(low.shape)
    found = by_row(low | high << 4, 4).reshape(codes.shape).astype(np.int8) - 32
    assert np.array_equal(found, codes)


def test_q8_0() -> None:
    rows = random_rows("q8_0", np.random.default_rng(3), (ROWS, 96))
    d, codes = q8_0.fields(rows)
    head, body = blocks("q8_0", packed("q8_0", rows, 96), 96)
    assert np.array_equal(halves(head, 0), d)
    found = by_row((body ^ 128).view(np.int8).reshape(*body.shape[:2], 8, 8, 4), 3)
    assert np.array_equal(found.reshape(codes.shape), codes)


def test_mxfp4() -> None:
    rows = random_rows("mxfp4", np.random.default_rng(4), (ROWS, 96))
    exponents, codes = mxfp4.fields(rows)
    head, body = blocks("mxfp4", packed("mxfp4", rows, 96), 96)
    assert np.array_equal(by_row(head, 2), exponents)
    assert np.array_equal(by_row(nibble_stage(body), 2).reshape(codes.shape), codes)


def test_q5_1() -> None:
    rows = random_rows("q5_1", np.random.default_rng(5), (ROWS, 96))
    d, m, codes = q5_1.fields(rows)
    head, body = blocks("q5_1", packed("q5_1", rows, 96), 96)
    assert np.array_equal(halves(head, 0), d)
    assert np.array_equal(halves(head, 16), m)
    found = nibble_stage(body[..., :128]) | fifth_bits(body[..., 128:]) << 4
    assert np.array_equal(by_row(found, 2).reshape(codes.shape), codes)


@pytest.mark.parametrize("layout", PACKED_FORMATS)
def test_padding_rows_are_zero(layout: str) -> None:
    """Rows beyond the matrix have zero scales, so their dots are zero whatever the codes."""
    fmt = PACKED_FORMATS[layout]
    values = 2 * fmt.values
    one = packed(fmt.source, random_rows(fmt.source, np.random.default_rng(6), (1, values)), values)
    head, _ = blocks(fmt.source, one, values)
    scale_bytes = 1 if layout == "mxfp4_x8" else 2
    assert not head[..., scale_bytes : 8 * scale_bytes].any()


def test_packed_bytes_stay_close_to_the_stored() -> None:
    """The overheads that the diagrams state."""
    for name, limit in {"q4_k": 1.028, "q5_k": 1.023, "q6_k": 1.01, "q8_0": 1.001, "q5_1": 1.0, "mxfp4": 1.001}.items():
        fmt = PACKED_OF[name]
        stored = 8 * 2048 // fmt.values * fmt.source_bytes
        assert stored <= fmt.packed_bytes(8, 2048) <= stored * limit


@pytest.mark.parametrize("layout", PACKED_FORMATS)
@pytest.mark.parametrize("rows", [1, 8, 11, 16])
@pytest.mark.parametrize("count", [1, 3])
def test_unpacking_gives_the_stored_bytes_back(layout: str, rows: int, count: int) -> None:
    """Any bytes whatever, from rows that do not follow one another in memory."""
    fmt = PACKED_FORMATS[layout]
    stored = np.random.default_rng(7).integers(0, 256, (rows, count * fmt.source_bytes + 5), np.uint8)[:, 3:-2]
    whole = packed(fmt.source, stored, count * fmt.values)
    assert unpack_rows(fmt, whole, rows).tobytes() == stored.tobytes()
    assert unpack_rows(fmt, whole[::-1][::-1], 0).shape == (0, stored.shape[1])


def test_unpacking_refuses_what_was_not_packed_so() -> None:
    fmt = PACKED_OF["q4_k"]
    groups = np.zeros((2, fmt.group_bytes(256)), np.uint8)
    with pytest.raises(ValueError, match="up to 16 rows, not 17"):
        unpack_rows(fmt, groups, 17)
    with pytest.raises(ValueError, match="no q4_k_x8 group has 1183 bytes"):
        unpack_rows(fmt, groups[:, :-1], 8)
