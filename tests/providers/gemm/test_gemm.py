"""Packed and stored GEMM against the oracle, byte for byte: every format, form and thread count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from kernelmap.spec import BuildSpec
from kernelmap_providers.formats import random_rows
from kernelmap_providers.gemm import packed, unpacked
from kernelmap_providers.gemm.packed import packed_gemm, workspace_bytes
from kernelmap_providers.gemm.stored import STORED_FORMATS
from kernelmap_providers.gemm.unpacked import unpacked_gemm
from kernelmap_providers.packed.layouts import PACKED_OF
from kernelmap_providers.packed.weight import PackedWeight, aligned_bytes
from kernelmap_providers.preparation.hooks import prepare_x8
from kernelmap_providers.quantize.layouts import act_row_bytes
from kernelmap_providers.reference.activations import quantized
from kernelmap_providers.reference.dots import dot
from kernelmap_providers.simd.target import FORMS, compiled_features, host_form

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
RUNNABLE = [name for name, form in FORMS.items() if set(form.features) <= compiled_features()]
FORMATS = sorted(STORED_FORMATS)


def oracle(name: str, x: Floats, weight: Bytes) -> Floats:
    return np.stack([dot(name, weight, quantized(name, row, 0, "x")) for row in x])


def activations(rng: np.random.Generator, tokens: int, values: int) -> Floats:
    return (rng.standard_normal((tokens, values)) * rng.choice([1e-3, 1.0, 30.0], (tokens, 1))).astype(np.float32)


def pack_weight(name: str, weight: Bytes, shape: tuple[int, ...]) -> PackedWeight:
    return prepare_x8(weight, source_format=name, prepared_format=f"{name}_x8", shape=shape)


def call(run: Callable[..., int], name: str, x: Floats, weight: object, rows: int, threads: int) -> Floats:
    y = np.full((len(x), rows), np.nan, np.float32)
    workspace = aligned_bytes(workspace_bytes(PACKED_OF[name], len(x), x.shape[1]) + 64)
    assert run(x, weight, y, workspace, threads) == 0
    return y


def same(y: Floats, expected: Floats) -> bool:
    return np.array_equal(y.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("form", RUNNABLE)
@pytest.mark.parametrize("name", FORMATS)
def test_packed_is_the_oracle(name: str, form: str) -> None:
    """Rows outside every group and vector size, more tokens than any tile, one token; 1, 2, 3 and 8 threads."""
    rng = np.random.default_rng(5)
    fmt = PACKED_OF[name]
    for rows, values, tokens in ((45, 2 * 256, 13), (16, 256, 4), (83, 3 * 256, 1), (77, 5 * 256, 1)):
        weight, x = random_rows(name, rng, (rows, values)), activations(rng, tokens, values)
        run, expected = packed_gemm(fmt, FORMS[form], rows, values), oracle(name, x, weight)
        prepared = pack_weight(name, weight, (rows, values))
        for threads in (1, 2, 3, 8):
            assert same(call(run, name, x, prepared, rows, threads), expected)


@pytest.mark.parametrize("form", [name for name in RUNNABLE if name != "avx512vnni"])
@pytest.mark.parametrize("name", FORMATS)
def test_stored_is_the_oracle(name: str, form: str) -> None:
    rng = np.random.default_rng(6)
    for rows, values, tokens in ((21, 2 * 256, 6), (8, 256, 1)):
        weight, x = random_rows(name, rng, (rows, values)), activations(rng, tokens, values)
        expected = oracle(name, x, weight)
        for together in (True, False):
            run = unpacked_gemm(name, FORMS[form], rows, values, together)
            for threads in (1, 2, 3, 8):
                assert same(call(run, name, x, weight, rows, threads), expected)


REPACKED = [("q4_k", form) for form in RUNNABLE] + [
    (name, host_form().name) for name in ("q5_k", "q6_k", "q8_0", "mxfp4")
]


@pytest.mark.parametrize(("name", "form"), REPACKED)
def test_repacking_is_the_oracle_and_stays_in_its_scratch(name: str, form: str) -> None:
    """Row counts on every side of a vector and a pass, tokens on both sides of the threshold; scratch as maps say."""
    rng = np.random.default_rng(16)
    fmt = PACKED_OF[name]
    for rows, values, tokens in ((83, 512, 5), (32, 256, 13), (7, 256, 9), (41, 256, 4), (1, 256, 27)):
        weight, x = random_rows(name, rng, (rows, values)), activations(rng, tokens, values)
        expected = oracle(name, x, weight)
        run = unpacked_gemm(name, FORMS[form], rows, values, repack=True)
        for threads in (1, 2, 3, 8):
            acts = -(-tokens * act_row_bytes(fmt.act, values) // 64) * 64
            size = acts + threads * unpacked.REPACKED_GROUPS * fmt.group_bytes(values)
            scratch, y = aligned_bytes(size + 64), np.full((tokens, rows), np.nan, np.float32)
            scratch[...] = 0xFF
            assert run(x, weight, y, scratch[:size], threads) == 0
            assert same(y, expected)
            assert (scratch[size:] == 0xFF).all()


def adversarial(name: str, rng: np.random.Generator, rows: int, values: int) -> Bytes:
    """Blocks whose codes are all equal, at their limits or alternating in sign, under random finite scales."""
    weight = random_rows(name, rng, (rows, values))
    fmt = PACKED_OF[name]
    blocks = weight.reshape(rows, -1, fmt.source_bytes)
    start = {"q4_k": 16, "q5_k": 16, "q6_k": 0, "q8_0": 2, "q5_1": 4, "mxfp4": 1}[name]
    end = {"q6_k": 208}.get(name, fmt.source_bytes)
    patterns = (0x00, 0xFF, 0x80, 0x7F, 0xF0, 0x0F, 0x77, 0x88)
    for row in range(rows):
        blocks[row, :, start:end] = patterns[row % len(patterns)]
        if name in ("q4_k", "q5_k"):
            blocks[row, :, 4:16] = (0xFF, 0x00, 0x3F)[row % 3]
    return weight


@pytest.mark.parametrize("form", RUNNABLE)
@pytest.mark.parametrize("name", FORMATS)
def test_patterns_that_saturate_careless_code(name: str, form: str) -> None:
    """Extreme codes times activations of +-127 in every arrangement of signs."""
    rng = np.random.default_rng(7)
    rows, values = 24, 512
    weight = adversarial(name, rng, rows, values)
    signs = [np.ones(values), np.tile([1, -1], values // 2), np.tile([1, 1, -1, -1], values // 4), -np.ones(values)]
    x = np.stack(signs).astype(np.float32)
    expected = oracle(name, x, weight)
    prepared = pack_weight(name, weight, (rows, values))
    assert same(call(packed_gemm(PACKED_OF[name], FORMS[form], rows, values), name, x, prepared, rows, 2), expected)
    assert same(call(unpacked_gemm(name, FORMS[form], rows, values), name, x, weight, rows, 2), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_one_block_no_tokens_and_strided_views(name: str) -> None:
    rng = np.random.default_rng(8)
    fmt = PACKED_OF[name]
    values, rows = fmt.values, 9
    weight = random_rows(name, rng, (rows, values))
    wide, tall = activations(rng, 10, 2 * values), np.zeros((3, rows), np.float32)
    views = [wide[::2, values:], wide[::-1, ::2], wide[:0, :values]]
    unaligned = np.zeros(4 * 3 * values + 1, np.uint8)[1:].view(np.float32).reshape(3, values)
    unaligned[...] = wide[:3, :values]
    prepared = pack_weight(name, weight, (rows, values))
    padded = np.zeros((rows, weight.shape[1] + 3), np.uint8)[:, 1:-2]
    padded[...] = weight
    padded.flags.writeable = False
    for x in (*views, unaligned):
        expected = oracle(name, x, weight) if len(x) else tall[:0]
        assert same(call(packed_gemm(fmt, host_form(), rows, values), name, x, prepared, rows, 2), expected)
        assert same(call(unpacked_gemm(name, host_form(), rows, values), name, x, padded, rows, 2), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q4_k", "q8_0", "q5_1"])
def test_a_bad_row_is_named(name: str, bad: float) -> None:
    rng = np.random.default_rng(9)
    weight, x = random_rows(name, rng, (8, 256)), activations(rng, 7, 256)
    x[5, 3] = x[4, 255] = bad
    for threads in (1, 2):
        for run, w in (
            (packed_gemm(PACKED_OF[name], host_form(), 8, 256), pack_weight(name, weight, (8, 256))),
            (unpacked_gemm(name, host_form(), 8, 256), weight),
        ):
            workspace = aligned_bytes(workspace_bytes(PACKED_OF[name], 7, 256))
            assert run(x, w, np.zeros((7, 8), np.float32), workspace, threads) == 1 + 4


def test_many_rows() -> None:
    rng = np.random.default_rng(10)
    rows = 65536
    weight, x = random_rows("q8_0", rng, (rows, 32)), activations(rng, 2, 32)
    prepared = pack_weight("q8_0", weight, (rows, 32))
    y = call(packed_gemm(PACKED_OF["q8_0"], host_form(), rows, 32), "q8_0", x, prepared, rows, 2)
    assert same(y, oracle("q8_0", x, weight))


def test_another_layout_is_refused() -> None:
    rng = np.random.default_rng(11)
    other = pack_weight("q5_k", random_rows("q5_k", rng, (8, 256)), (8, 256))
    run = packed_gemm(PACKED_OF["q4_k"], host_form(), 8, 256)
    with pytest.raises(TypeError, match=r"q5_k_x8 v2 .*the kernel takes q4_k_x8 v1"):
        run(np.zeros((1, 256), np.float32), other, np.zeros((1, 8), np.float32), aligned_bytes(320), 1)


def test_builders_take_a_spec() -> None:
    rng = np.random.default_rng(12)
    weight, x = random_rows("q4_k", rng, (16, 256)), activations(rng, 5, 256)
    facts = {
        "provider": "p", "group": "g", "op": "gemm_nt", "variant": "serial", "dims": {"N": 16, "K": 256},
        "dtypes": {"x": "fp32", "weight": "q4_k", "y": "fp32"},
    }  # fmt: skip
    expected = oracle("q4_k", x, weight)
    prepared = pack_weight("q4_k", weight, (16, 256))
    run = packed.build(BuildSpec(**facts, prepared={"weight": "q4_k_x8"}))
    assert same(call(run, "q4_k", x, prepared, 16, 1), expected)
    for build in (unpacked.build, unpacked.build_per_row):
        assert same(call(build(BuildSpec(**facts)), "q4_k", x, weight, 16, 1), expected)
