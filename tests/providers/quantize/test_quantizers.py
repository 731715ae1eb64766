"""The vector quantizers against ggml's recorded bytes and the rules at the edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernelmap_providers.formats import module_of
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.weight import aligned_bytes
from kernelmap_providers.quantize.layouts import ACT_LAYOUTS, act_row_bytes
from kernelmap_providers.quantize.rows import NO_ROW, quantize_blocks
from kernelmap_providers.simd.static import Static

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "blocks.npz"
STORED = {"q8_k": (256, 292), "q8_0": (32, 34), "q8_1": (32, 36)}
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@jit
def run(act: Any, x: Any, blocks: Any, out: Any) -> Any:
    return quantize_blocks(act, x.ctypes.data, x.strides[0], blocks, out.ctypes.data, 0, x.shape[0] * blocks)


def quantize(name: str, x: Floats) -> tuple[Bytes, int]:
    """Rows in our layout, ``[rows, blocks, block bytes]``, and the least bad row."""
    layout = ACT_LAYOUTS[name]
    out = aligned_bytes(len(x) * act_row_bytes(layout, x.shape[1]))
    out[:] = 0xAA
    bad = run(Static(name), x, x.shape[1] // layout.values, out)
    return out.reshape(len(x), -1, layout.bytes), bad


def as_stored(name: str, ours: Bytes) -> Bytes:
    """Our layout as ggml's bytes."""
    part = lambda start, end: np.ascontiguousarray(ours[..., start:end])  # noqa: E731
    if name == "q8_k":
        return np.concatenate([part(304, 308), part(0, 256), part(256, 288)], axis=-1)
    halves = [part(at, at + 4).view(np.float32).astype(np.float16).view(np.uint8) for at in (32, 36)]
    return np.concatenate([*halves[: 1 if name == "q8_0" else 2], part(0, 32)], axis=-1)


@pytest.mark.parametrize("name", STORED)
def test_the_bytes_are_ggmls(name: str) -> None:
    """Every recorded row, edge rows included; rows that q8_1 cannot hold are reported, with the recorded bytes."""
    with np.load(GOLDEN) as golden:
        x, kinds = golden["act"], golden["act_kinds"]
        recorded = golden[f"act_{name.upper()}"].reshape(len(x), -1, STORED[name][1])
    ours, bad = quantize(name, x)
    with np.errstate(over="ignore"):
        same = (as_stored(name, ours) == recorded).all(axis=(1, 2))
    assert same.all(), kinds[~same]
    expected = NO_ROW
    if name == "q8_1":
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(np.ascontiguousarray(recorded[..., 2:4]).view(np.float16)).all(axis=(1, 2))
        expected = int(np.argmin(finite)) if not finite.all() else NO_ROW
    assert bad == expected


@pytest.mark.parametrize("name", STORED)
def test_derived_numbers_follow_the_codes(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 512)).astype(np.float32)
    ours, _ = quantize(name, x)
    codes = np.ascontiguousarray(ours[..., : ACT_LAYOUTS[name].values]).view(np.int8).astype(np.int32)
    if name == "q8_k":
        sums16 = np.ascontiguousarray(ours[..., 256:288]).view(np.int16)
        sums32 = np.ascontiguousarray(ours[..., 288:304]).view(np.int16)
        assert np.array_equal(sums16, codes.reshape(5, 2, 16, 16).sum(axis=-1))
        assert np.array_equal(sums32, codes.reshape(5, 2, 8, 32).sum(axis=-1))
    else:
        bias = np.ascontiguousarray(ours[..., 40:44]).view(np.int32)[..., 0]
        assert np.array_equal(bias, -128 * codes.sum(axis=-1))


def edge_rows(values: int) -> Floats:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((12, values)).astype(np.float32)
    rows[0] = 0
    rows[1] = -0.0
    rows[2] *= np.float32(1e-38)  # 127 / max is not finite
    rows[3] *= np.float32(1e-30)
    rows[4, :] = 3.0
    rows[5, :] = -3.0
    rows[6, values // 2] = -100
    rows[7, values // 2] = 100
    rows[8, [3, 9]] = (50, -50)  # a tie of magnitudes: the first decides
    rows[9, [3, 9]] = (-50, 50)
    rows[10] = np.arange(values) - values / 2 + np.float32(0.5)
    rows[11] = rng.choice([-1e-45, 1e-45, 0], values)
    return rows.astype(np.float32)


@pytest.mark.parametrize("name", STORED)
def test_edge_rows_match_the_plain_quantizer(name: str) -> None:
    x = edge_rows(256)
    ours, bad = quantize(name, x)
    plain, refused = module_of(name).quantize_rows(x)
    assert np.array_equal(as_stored(name, ours).reshape(plain.shape), plain)
    assert bad == (int(np.argmax(refused)) if refused.any() else NO_ROW)


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_values_are_reported(name: str, value: float) -> None:
    x = np.ones((6, 512), np.float32)
    x[4, 0] = x[3, 511] = value
    ours, bad = quantize(name, x)
    assert bad == 3
    clean, _ = quantize(name, np.ones((6, 512), np.float32))
    assert np.array_equal(ours[:3], clean[:3])
