"""Schedules of the expert blocks: the same bytes from every provider of a group, variant, thread count and routing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from calling import Subject, aligned, registry
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmap.bind import load_runner
from kernelmap_providers import formats
from kernelmap_providers.experts import routed
from kernelmap_providers.experts import words as at
from kernelmap_providers.reference.experts import moe_swiglu_expert_mlp
from kernelmap_providers.reference.refusal import RefusedRow

Array = np.ndarray[Any, Any]
THREADS = (1, 2, 3, 8)
ROUTED_OPS = {"moe_swiglu_expert_mlp", "moe_relu_squared_expert_mlp"}
GROUPS = sorted(group for group, ladder in registry().ladders.items() if ladder[0].op in ROUTED_OPS)
PARAMS = {"beta": 4.0, "linear_beta": 25.0, "alpha": 1.702, "limit": 7.0}
ROUTINGS = ("random", "one expert", "repeated", "empty experts", "spread")
Q4K_Q5K = "moe_swiglu_expert_forward_q4k_q5k"


def routing(kind: str, rng: np.random.Generator, rows: int, slots: int, experts: int) -> Array:
    """Indices ``[rows, slots]`` of one routing distribution."""
    if kind == "one expert":
        made = np.full((rows, slots), rng.integers(experts))
    elif kind == "repeated":
        made = np.repeat(rng.integers(0, experts, (rows, 1)), slots, axis=1)
    elif kind == "empty experts":
        made = rng.choice([0, experts - 1], (rows, slots))
    elif kind == "spread":
        made = (np.arange(rows * slots).reshape(rows, slots) * 7) % experts
    else:
        made = rng.integers(0, experts, (rows, slots))
    return made.astype(np.int32)


def arrays_of(group: str, dims: dict[str, int], rows: int, kind: str, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    contract = registry().contracts[group]
    arrays = {
        "hidden": rng.standard_normal((rows, dims["H"])).astype(np.float32),
        "indices": routing(kind, rng, rows, dims["K"], dims["E"]),
        "routing_weights": rng.standard_normal((rows, dims["K"])).astype(np.float32),
    }
    for port in contract.weights:
        shape = tuple(dims[str(size)] for size in port.shape)
        if port.dtype == "fp32":
            arrays[port.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            arrays[port.name] = formats.random_rows(port.dtype, rng, shape)
    return arrays


def assert_all_equal(group: str, dims: dict[str, int], arrays: dict[str, Array]) -> None:
    """All providers, variants and thread counts against the serial production provider, or all refuse the same row."""
    expected: tuple[int, bytes] | None = None
    for item in sorted(registry().ladders[group], key=lambda item: item.id):
        params = {param.name: PARAMS[param.name] for param in registry().contracts[group].params}
        subject = Subject(item.id, dims, params)
        prepared = {port: subject.prepared(port, arrays[port]) for port in subject.hooks}
        for variant in subject.variants:
            run = load_runner(subject.item, subject.contract, subject.spec(variant))
            for threads in THREADS:
                if variant == "parallel_experts" and len(arrays["hidden"]) > 1:
                    continue  # guarded by R_max
                made = run_once(subject, run, {**arrays, **prepared}, threads)
                expected = expected or made
                assert made == expected, (item.id, variant, threads)


def run_once(subject: Subject, run: Any, arrays: dict[str, Any], threads: int) -> tuple[int, bytes]:
    rows, dims = len(arrays["hidden"]), subject.dims
    output = np.full((rows, dims["H"]), 77, np.float32)
    size = subject.item.scratch[0].size_bytes.evaluate({**dims, "R": rows, "threads": threads})
    ports = (*subject.contract.inputs, *subject.contract.weights)
    status = run(*(arrays[port.name] for port in ports), output, aligned(size), threads)
    return status, output.tobytes() if status == 0 else b""


@pytest.mark.parametrize("group", GROUPS)
@settings(max_examples=6, deadline=None)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 9), st.integers(1, 4)),
    st.sampled_from((1, 1, 2, 7, 70)),
    st.sampled_from(ROUTINGS),
    st.integers(0, 2**31),
)
def test_every_provider_gives_the_same_bytes(
    group: str, sizes: tuple[int, int, int, int], rows: int, kind: str, seed: int
) -> None:
    step = 256 if any(port.dtype.endswith("_k") for port in registry().contracts[group].weights) else 32
    dims = {"H": step * sizes[0], "I": step * sizes[1], "E": sizes[2], "K": sizes[3]}
    assert_all_equal(group, dims, arrays_of(group, dims, rows, kind, seed))


@pytest.mark.parametrize("kind", ROUTINGS)
def test_long_segments_of_the_bucketed_schedule(kind: str) -> None:
    """More than 96 tokens an expert, more pairs than one segment, and columns that are no multiple of 64."""
    group = registry().maps[Q4K_Q5K].selection.equivalence_group
    dims = {"H": 256, "I": 256, "E": 3, "K": 3}
    assert_all_equal(group, dims, arrays_of(group, dims, 130, kind, 1))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_fp32_dims_need_no_alignment(rows: int) -> None:
    group = registry().maps["moe_swiglu_expert_forward_fp32_fp32"].selection.equivalence_group
    dims = {"H": 37, "I": 13, "E": 4, "K": 2}
    arrays = arrays_of(group, dims, rows, "random", 3)
    assert_all_equal(group, dims, arrays)
    expected = Subject("moe_swiglu_expert_forward_fp32_fp32", dims).oracle(**arrays)["output"]
    status, made = Subject("moe_swiglu_expert_forward_fp32_fp32", dims).call(arrays, "serial", 1)
    assert status == 0 and made["output"].tobytes() == expected.tobytes()


def quantization_passes(map_id: str, rows: int, slots: int, variant: str) -> int:
    """Hidden rows that one call quantizes, as the schedule counts them in its words."""
    dims = {"H": 256, "I": 256, "E": 4, "K": slots}
    subject = Subject(map_id, dims)
    arrays = arrays_of(subject.contract.equivalence_group, dims, rows, "random", 5)
    run = load_runner(subject.item, subject.contract, subject.spec(variant))
    prepared = {port: subject.prepared(port, arrays[port]) for port in subject.hooks}
    given_arrays = [{**arrays, **prepared}[p.name] for p in (*subject.contract.inputs, *subject.contract.weights)]
    workspace = aligned(subject.item.scratch[0].size_bytes.evaluate({**dims, "R": rows, "threads": 2}))
    assert run(*given_arrays, np.zeros((rows, 256), np.float32), workspace, 2) == 0
    return int(workspace[at.QUANTIZED : at.QUANTIZED + 8].view(np.int64)[0])


def test_the_naive_schedule_quantizes_once_a_pair_and_the_others_once_a_token() -> None:
    assert quantization_passes(f"{Q4K_Q5K}_naive", 12, 3, "serial") == 36
    assert quantization_passes(Q4K_Q5K, 12, 3, "serial") == 12
    assert quantization_passes(Q4K_Q5K, 12, 3, "parallel_workspace") == 12
    assert quantization_passes(f"{Q4K_Q5K}_bucketed", 12, 3, "parallel_bucketed") == 12
    assert quantization_passes(Q4K_Q5K, 1, 3, "parallel_experts") == 1


@pytest.mark.parametrize("map_id", ["moe_swiglu_expert_forward_q4k_q6k", "moe_swiglu_expert_forward_q4k_q6k_packed"])
def test_fused_gate_up_tensors_are_read_through_row_views(map_id: str) -> None:
    """``ffn_gate_up_exps``: gate and up are rows 0..I-1 and I..2I-1 of each expert of one tensor."""
    dims = {"H": 256, "I": 256, "E": 5, "K": 2}
    subject = Subject(map_id, dims)
    arrays = arrays_of(subject.contract.equivalence_group, dims, 9, "random", 2)
    expected = subject.oracle(**arrays)["output"]
    fused = np.concatenate([arrays["expert_gate"], arrays["expert_up"]], axis=1)
    fused.flags.writeable = False
    arrays["expert_gate"], arrays["expert_up"] = fused[:, : dims["I"]], fused[:, dims["I"] :]
    for variant in (variant.name for variant in subject.item.impl.variants):
        status, made = subject.call(arrays, variant, 3)
        assert status == 0 and made["output"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("down", ["q5k", "q4k", "q6k"])
def test_bucketed_and_packed_share_their_prepared_tensors(down: str) -> None:
    """Same ports, same prepared format, same hook and bytes: bind keys by (tensor, prepared format), so one exists."""
    bucketed, packed = (
        registry().maps[f"moe_swiglu_expert_forward_q4k_{down}_{form}"] for form in ("bucketed", "packed")
    )
    assert bucketed.weight_preparation == packed.weight_preparation
    assert {port for hook in packed.weight_preparation for port in hook.weights} == {
        "expert_gate", "expert_up", "expert_down",
    }  # fmt: skip


@pytest.mark.parametrize("function", ["clamped", "situ", "relu_squared"])
def test_extreme_intermediates_are_refused_or_equal(function: str) -> None:
    """Rows up to the edge of fp32: the oracle and all schedules refuse the same row, or give the same bytes."""
    group = next(g for g in GROUPS if registry().contracts[g].arithmetic["swiglu"] == function and g.startswith("fp32"))
    item = registry().ladders[group][0]
    dims = {"H": 32, "I": 32, "E": 3, "K": 2}
    for magnitude in (1e10, 1e19, 1e30, 1e38):
        arrays = arrays_of(group, dims, 6, "random", 9)
        arrays["hidden"][3] *= np.float32(magnitude)
        subject = Subject(item.id, dims, {p.name: PARAMS[p.name] for p in registry().contracts[group].params})
        try:
            with np.errstate(over="ignore"):
                expected = 0, subject.oracle(**arrays)["output"].tobytes()
        except RefusedRow as refused:
            expected = 1 + refused.row, b""
        run = load_runner(subject.item, subject.contract, subject.spec("serial"))
        assert run_once(subject, run, arrays, 1) == expected
        assert_all_equal(group, dims, arrays)


@pytest.mark.parametrize("gate", ["q4_k", "q6_k"])
@pytest.mark.parametrize("down", ["q8_0", "mxfp4", "q5_1"])
def test_a_new_pair_of_formats_needs_no_code(gate: str, down: str) -> None:
    """Pairs that no contract lists build and run on the same schedules, byte for byte as the oracle says."""
    subject = Subject(Q4K_Q5K, {"H": 256, "I": 256, "E": 2, "K": 2})
    arrays = arrays_of(subject.contract.equivalence_group, subject.dims, 3, "random", 4)
    rng, types = np.random.default_rng(8), {"expert_gate": gate, "expert_up": gate, "expert_down": down}
    arrays |= {port: formats.random_rows(storage, rng, (2, 256, 256)) for port, storage in types.items()}
    for variant in ("serial", "parallel_bucketed"):
        spec = subject.spec(variant)
        spec = replace(spec, dtypes={**spec.dtypes, **types})
        output = np.empty((3, 256), np.float32)
        assert routed.swiglu(spec)(*arrays.values(), output, aligned(1 << 20), 2) == 0
        assert output.tobytes() == moe_swiglu_expert_mlp(spec, **arrays)["output"].tobytes()
