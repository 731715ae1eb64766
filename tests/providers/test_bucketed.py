"""The bucketed schedule on packed weights: the oracle's bytes for every pair, form, thread count and routing."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from kernelmap.spec import BuildSpec
from kernelmap_providers.experts import routed, shared
from kernelmap_providers.experts.sizes import DOWN_COLUMNS, PART_COLUMNS, SEGMENT_TOKENS, scratch_bytes
from kernelmap_providers.formats import random_rows
from kernelmap_providers.packed.layouts import PACKED_OF
from kernelmap_providers.packed.weight import PackedWeight
from kernelmap_providers.preparation.hooks import prepare_x8
from kernelmap_providers.reference import experts as oracles
from kernelmap_providers.reference.refusal import RefusedRow
from kernelmap_providers.simd.target import FORMS, compiled_features

Array = np.ndarray[Any, Any]
RUNNABLE = [name for name, form in FORMS.items() if set(form.features) <= compiled_features()]
THREADS = (1, 2, 3, 8)
PAIRS = [("q4_k", "q4_k"), ("q4_k", "q5_k"), ("q4_k", "q6_k"), ("q4_k", "q8_0"), ("q4_k", "q5_1"), ("q5_k", "q6_k"),
         ("q6_k", "q8_0"), ("q8_0", "q8_0"), ("mxfp4", "mxfp4")]  # fmt: skip
GUARD = 4096


@dataclass(frozen=True)
class Block:
    """A routed block: its spec, stored and prepared matrices."""

    spec: BuildSpec
    stored: dict[str, Array]
    prepared: dict[str, PackedWeight]

    def scratch(self, tokens: int, threads: int) -> tuple[Array, Array]:
        """(exactly the declared bytes, the same with guards around)."""
        types = self.spec.dtypes
        size = scratch_bytes(types["expert_gate"], types["expert_down"], {**self.spec.dims, "R": tokens}, threads)
        return _guarded(size)

    def run(self, inputs: tuple[Array, ...], threads: int, run: Callable[..., int] | None = None) -> tuple[int, bytes]:
        """(status, output bytes); the scratch starts as rubbish and its guards stay untouched."""
        output = np.full((len(inputs[0]), self.spec.dims["H"]), 77, np.float32)
        scratch, whole = self.scratch(len(inputs[0]), threads)
        run = run or routed.swiglu(self.spec)
        status = run(*inputs, *self.prepared.values(), output, scratch, threads)
        assert _untouched(scratch, whole)
        return status, output.tobytes()

    def expected(self, inputs: tuple[Array, ...]) -> tuple[int, bytes]:
        """What the oracle says."""
        try:
            made = oracles.moe_swiglu_expert_mlp(self.spec, *inputs, **self.stored)["output"]
        except RefusedRow as refused:
            return refused.row + 1, np.full((len(inputs[0]), self.spec.dims["H"]), np.nan, np.float32).tobytes()
        return 0, made.tobytes()

    def plain(self, inputs: tuple[Array, ...]) -> tuple[int, bytes]:
        """The production provider's serial bytes: the oracle takes long for many rows."""
        output = np.empty((len(inputs[0]), self.spec.dims["H"]), np.float32)
        scratch = _guarded(1 << 20)[0]
        status = routed.swiglu(_spec(self.spec, prepared={}))(*inputs, *self.stored.values(), output, scratch, 1)
        return status, output.tobytes()


def _guarded(size: int) -> tuple[Array, Array]:
    whole = np.full(size + 2 * GUARD + 64, 0xA5, np.uint8)
    start = GUARD + -whole[GUARD:].ctypes.data % 64
    return whole[start : start + size], whole


def _untouched(scratch: Array, whole: Array) -> bool:
    start = scratch.ctypes.data - whole.ctypes.data
    return bool((whole[:start] == 0xA5).all() and (whole[start + scratch.nbytes :] == 0xA5).all())


def _spec(spec: BuildSpec, prepared: dict[str, str]) -> BuildSpec:
    return BuildSpec(spec.provider, spec.group, spec.op, "serial", spec.dtypes, spec.dims, {}, prepared,
                     {"swiglu": "ggml"})  # fmt: skip


@cache
def block(gate: str, down: str, dims: tuple[int, int, int, int], form: str = "") -> Block:
    """A block of random matrices; dims H, I, E, K."""
    hidden, width, experts, slots = dims
    rng = np.random.default_rng(5)
    shapes = {"expert_gate": (gate, width, hidden), "expert_up": (gate, width, hidden),
              "expert_down": (down, hidden, width)}  # fmt: skip
    stored = {port: random_rows(name, rng, (experts, rows, values)) for port, (name, rows, values) in shapes.items()}
    layouts = {port: PACKED_OF[name].name for port, (name, _, _) in shapes.items()}
    prepared = {
        port: prepare_x8(stored[port], source_format=name, prepared_format=layouts[port], shape=(experts, *shape))
        for port, (name, *shape) in shapes.items()
    }
    # "none" is no feature: the portable form.
    isa = FORMS[form].features or ("none",) if form else ()
    spec = BuildSpec(
        "moe", "group", "moe_swiglu_expert_mlp", "parallel_bucketed",
        {port: name for port, (name, _, _) in shapes.items()}, {"H": hidden, "I": width, "E": experts, "K": slots},
        {}, layouts, {"swiglu": "ggml"}, isa,
    )  # fmt: skip
    return Block(spec, stored, prepared)


def inputs(spec: BuildSpec, rows: int, kind: str = "random") -> tuple[Array, ...]:
    """hidden, indices, routing_weights of one routing distribution."""
    rng, experts, slots = np.random.default_rng(rows), spec.dims["E"], spec.dims["K"]
    indices = rng.integers(0, experts, (rows, slots))
    if kind == "one expert":
        indices[...] = experts - 1
    elif kind == "repeated":
        indices[...] = indices[:, :1]
    elif kind == "empty experts":
        indices = rng.choice([0, experts - 1], (rows, slots))
    hidden = rng.standard_normal((rows, spec.dims["H"])).astype(np.float32)
    return hidden, indices.astype(np.int32), rng.standard_normal((rows, slots)).astype(np.float32)


@pytest.mark.parametrize(("gate", "down"), PAIRS)
def test_pairs_of_formats_give_the_oracles_bytes(gate: str, down: str) -> None:
    """One block of each format, and a few tokens: every streaming tile."""
    tested = block(gate, down, (256, 256, 3, 2))
    for rows in (1, 5):
        given = inputs(tested.spec, rows)
        expected = tested.expected(given)
        assert expected[0] == 0
        for threads in THREADS:
            assert tested.run(given, threads) == expected, (rows, threads)


@pytest.mark.parametrize("form", RUNNABLE)
@pytest.mark.parametrize(("gate", "down"), [("q4_k", "q6_k"), ("mxfp4", "q8_0"), ("q5_k", "q4_k")])
def test_forms_give_the_same_bytes(gate: str, down: str, form: str) -> None:
    dims = (256, 256, 3, 2)
    tested = block(gate, down, dims, form)
    for rows in (3, 20):
        given = inputs(tested.spec, rows)
        assert tested.run(given, 2) == tested.plain(given)


@pytest.mark.parametrize("kind", ["random", "one expert", "repeated", "empty experts"])
@pytest.mark.parametrize(
    ("gate", "down", "dims"),
    [("q4_k", "q4_k", (256, 512, 5, 3)), ("q4_k", "q6_k", (512, 256, 40, 8)), ("mxfp4", "mxfp4", (160, 288, 4, 3))],
)
def test_routings_rows_and_threads(gate: str, down: str, dims: tuple[int, int, int, int], kind: str) -> None:
    """Segments of one to 96 pairs, several segments an expert, parts and columns that do not divide the sizes."""
    tested = block(gate, down, dims)
    run = routed.swiglu(tested.spec)
    assert PART_COLUMNS < 288
    assert DOWN_COLUMNS < 160
    assert SEGMENT_TOKENS < 250
    for rows in (0, 1, 2, 17, 250):
        given = inputs(tested.spec, rows, kind)
        expected = tested.plain(given)
        for threads in THREADS if rows < 250 else (1, 3):
            assert tested.run(given, threads, run) == expected, (rows, threads)


def test_refused_rows() -> None:
    """The least refused row, whatever refuses it; the output holds no number."""
    tested = block("q4_k", "q4_k", (256, 256, 3, 2))
    hidden, indices, weights = inputs(tested.spec, 20)
    cases: list[Array] = [a.copy() for a in (hidden, hidden, hidden, indices, indices, weights)]
    cases[0][3, 7] = np.nan
    cases[1][19, 255] = np.inf
    cases[2][6] *= np.float32(1e36)  # the intermediate overflows
    cases[3][0, 1] = 3
    cases[4][5, 0] = -1
    cases[5][9, 1] = np.nan
    for broken, place, row in zip(cases, (0, 0, 0, 1, 1, 2), (3, 19, 6, 0, 5, 9), strict=True):
        given = tuple(broken if i == place else a for i, a in enumerate((hidden, indices, weights)))
        expected = tested.expected(given)
        assert expected[0] == row + 1
        for threads in THREADS:
            assert tested.run(given, threads) == expected
    both = cases[0].copy()
    both[2] *= np.float32(1e36)
    for threads in THREADS:
        assert tested.run((both, indices, weights), threads)[0] == 3


def test_a_call_allocates_no_arrays() -> None:
    """1000 calls leave no memory behind, and one takes no more than views of its arguments: a row is 1 KiB here."""
    tested = block("q4_k", "q4_k", (256, 256, 3, 2))
    given, run = inputs(tested.spec, 40), routed.swiglu(tested.spec)
    output, scratch = np.empty((40, 256), np.float32), tested.scratch(40, 2)[0]
    call = (*given, *tested.prepared.values(), output, scratch, 2)
    run(*call)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            run(*call)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run(*call)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert after - before < 32 * 1000
    assert peak - after < 8192


def test_wrong_weights_are_refused() -> None:
    tested = block("q4_k", "q4_k", (256, 256, 3, 2))
    other = block("q4_k", "q6_k", (256, 256, 3, 2))
    output, scratch = np.empty((1, 256), np.float32), tested.scratch(1, 1)[0]
    with pytest.raises(TypeError, match="q6_k_x8"):
        routed.swiglu(tested.spec)(*inputs(tested.spec, 1), *other.prepared.values(), output, scratch, 1)


SHARED = [("q4_k", "q4_k"), ("q4_k", "q6_k"), ("q8_0", "q8_0")]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("gate", "down"), SHARED)
def test_shared_experts(gate: str, down: str, gated: bool) -> None:
    one = block(gate, down, (256, 512, 1, 1))
    ports = {port: port.replace("expert", "shared") for port in one.prepared}
    spec = BuildSpec(
        "shared", "group", "shared_swiglu_expert_mlp", "parallel_bucketed",
        {ports[port]: name for port, name in one.spec.dtypes.items()}, {"H": 256, "I": 512}, {},
        {ports[port]: name for port, name in one.spec.prepared.items()}, {"swiglu": "ggml"},
    )  # fmt: skip
    run = (shared.sigmoid_gated_then_routed_add if gated else shared.swiglu)(spec)
    stored = {ports[port]: array[0] for port, array in one.stored.items()}
    packed = [PackedWeight(w.layout, w.version, w.source, w.dims[1:], w.data) for w in one.prepared.values()]
    rng = np.random.default_rng(3)
    gate_input = (rng.standard_normal(256) * 0.1).astype(np.float32)
    for rows in (0, 1, 9):
        hidden, routed_rows = rng.standard_normal((2, rows, 256)).astype(np.float32)
        if gated:
            expected = oracles.shared_swiglu_gated_then_routed_add(
                spec, hidden, routed_rows, **stored, gate_input=gate_input
            )["output"]
        else:
            expected = oracles.shared_swiglu(spec, hidden, **stored)["output"]
        for threads in THREADS:
            output = np.full((rows, 256), 77, np.float32)
            scratch, whole = _guarded(scratch_bytes(gate, down, {**spec.dims, "R": rows}, threads))
            given = (hidden, routed_rows, *packed, gate_input) if gated else (hidden, *packed)
            assert run(*given, output, scratch, threads) == 0
            assert output.tobytes() == expected.tobytes()
            assert _untouched(scratch, whole)
