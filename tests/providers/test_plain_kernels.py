"""Plain kernels: elementary functions bit for bit against numpy, refusals, layouts, and what is compiled when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calling import BUCKETED, ROUTED, SHARED, SIGMOID, SOFTMAX, Subject

from kernelmap.bind import load_runner
from kernelmap_providers import formats, lanes
from kernelmap_providers.elementary import exp32
from kernelmap_providers.experts import bucketed, by_token, call, gating, legs
from kernelmap_providers.experts.prepare import ck_moe_prepare_q4k_gate_up_vnni_x8 as prepare
from kernelmap_providers.jit.compile import jit, native_address
from kernelmap_providers.reference import elementary as reference
from kernelmap_providers.reference.refusal import RefusedRow
from kernelmap_providers.routers import selected, sigmoid, softmax
from kernelmap_providers.routers.words import TASK_ARGUMENTS
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.static import StaticType
from kernelmap_providers.simd.target import host_form
from kernelmap_providers.simd.vectors import F32X8, I32X8

Array = np.ndarray[Any, Any]
DIMS = {"H": 512, "I": 256, "E": 5, "K": 2}


@jit
def each(function: Any, values: Array, out: Array) -> None:
    for i in range(len(values)):
        out[i] = function(values[i])


@jit
def tanh_of(x: int, out: int, count: int) -> None:
    for i in range(0, count, 8):
        ops.store(out + 4 * i, lanes.tanh(F32X8, I32X8, ops.load(F32X8, x + 4 * i)))


@jit
def dot_of(w: int, x: int, count: int) -> Any:
    return legs.dot_at(w, x, count)


def same_bits(made: Array, expected: Array) -> bool:
    """Equal bytes; any NaN equals any NaN."""
    nan = np.isnan(made) & np.isnan(expected)
    return bool((nan | (made.view(np.uint32) == expected.view(np.uint32))).all())


def test_exp_has_the_oracles_bits_for_floats_of_every_exponent() -> None:
    x = np.arange(0, 2**32, 1021, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate(
        [x, np.linspace(-104.5, 89.5, 1 << 20).astype(np.float32), np.float32([-104, 89, np.inf, -np.inf])]
    )
    made = np.empty_like(x)
    each(exp32, x, made)
    assert same_bits(made, reference.exp32(x))


def test_tanh_has_the_oracles_bits_and_is_close() -> None:
    x = np.arange(0, 2**32, 4093, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate(
        [np.float32([0.625, -0.625, np.inf, -np.inf]), x, np.linspace(-12, 12, 1 << 18).astype(np.float32)]
    )
    x = x[: len(x) // 8 * 8]
    made = np.empty_like(x)
    tanh_of(x.ctypes.data, made.ctypes.data, len(x))
    assert same_bits(made, reference.tanh32(x))
    finite = x[np.isfinite(x)]
    exact = np.tanh(finite.astype(np.float64))
    error = np.abs(reference.tanh32(finite) - exact)
    assert (error <= 2 * np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)).all()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15, 16, 100])
def test_lane_dots_have_the_oracles_bits(count: int) -> None:
    rng = np.random.default_rng(count)
    w, x = (rng.standard_normal(count).astype(np.float32) * np.float32(1e3) for _ in range(2))
    assert dot_of(w.ctypes.data, x.ctypes.data, count) == reference.dot_lanes(w[None], x)[0]


def routed_arrays(rows: int = 11, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    experts, width, size = DIMS["E"], DIMS["I"], DIMS["H"]
    return {
        "hidden": rng.standard_normal((rows, size)).astype(np.float32),
        "indices": rng.integers(0, experts, (rows, DIMS["K"])).astype(np.int32),
        "routing_weights": rng.random((rows, DIMS["K"])).astype(np.float32),
        "expert_gate": formats.random_rows("q4_k", rng, (experts, width, size)),
        "expert_up": formats.random_rows("q4_k", rng, (experts, width, size)),
        "expert_down": formats.random_rows("q5_k", rng, (experts, size, width)),
    }


def shared_arrays(rows: int = 11) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    width, size = DIMS["I"], DIMS["H"]
    return {
        "hidden": rng.standard_normal((rows, size)).astype(np.float32),
        "routed": rng.standard_normal((rows, size)).astype(np.float32),
        "shared_gate": formats.random_rows("q8_0", rng, (width, size)),
        "shared_up": formats.random_rows("q8_0", rng, (width, size)),
        "shared_down": formats.random_rows("q8_0", rng, (size, width)),
        "gate_input": rng.standard_normal(size).astype(np.float32),
    }


def every_schedule(subject: Subject, arrays: dict[str, Array]) -> set[int]:
    """Statuses of all variants and thread counts; a refusal must leave no value that looks right."""
    statuses = set()
    for variant in subject.variants:
        for threads in (1, 2, 5):
            status, made = subject.call(arrays, variant, threads)
            statuses.add(status)
            for array in made.values():
                assert status == 0 or (np.isnan(array).all() if array.dtype == np.float32 else (array == -1).all())
    return statuses


POISONS = {
    "hidden nan": ("hidden", np.nan), "hidden inf": ("hidden", -np.inf), "weights nan": ("routing_weights", np.nan),
    "index below": ("indices", -1), "index above": ("indices", DIMS["E"]), "index far": ("indices", 2**31 - 1),
}  # fmt: skip


@pytest.mark.parametrize("map_id", [ROUTED, BUCKETED])
@pytest.mark.parametrize("poison", POISONS)
def test_routed_refuses_the_least_bad_row_whatever_the_schedule(map_id: str, poison: str) -> None:
    port, value = POISONS[poison]
    arrays, subject = routed_arrays(), Subject(map_id, DIMS)
    for row in (9, 4, 6):
        arrays[port][row, 1] = value
    with pytest.raises(RefusedRow) as refused:
        subject.oracle(**arrays)
    assert refused.value.row == 4
    assert every_schedule(subject, arrays) == {5}


@pytest.mark.parametrize("map_id", [ROUTED, BUCKETED])
def test_an_intermediate_that_overflows_is_refused_with_its_token(map_id: str) -> None:
    """Rows 7 and 3 overflow inside an expert, row 8 is bad from the start: row 3 is the least."""
    arrays, subject = routed_arrays(), Subject(map_id, DIMS)
    arrays["hidden"][[3, 7]] *= np.float32(1e30)
    arrays["hidden"][8, 0] = np.nan
    with pytest.raises(RefusedRow) as refused:
        subject.oracle(**arrays)
    assert refused.value.row == 3
    assert every_schedule(subject, arrays) == {4}


@pytest.mark.parametrize("port", ["hidden", "routed"])
def test_shared_refuses(port: str) -> None:
    arrays = shared_arrays()
    arrays[port][[10, 2], 5] = np.inf
    assert every_schedule(Subject(SHARED, DIMS), arrays) == {3}


def test_shared_refuses_a_row_beyond_fp16_scales() -> None:
    arrays = shared_arrays()
    arrays["hidden"][6, 0] = 1e7
    assert every_schedule(Subject(SHARED, DIMS), arrays) == {7}


@pytest.mark.parametrize("map_id", [SOFTMAX, SIGMOID])
def test_routers_refuse(map_id: str) -> None:
    params = {"scale": 1.0, "n_group": 2, "topk_group": 1, "renormalize": "clamp"}
    logits = np.zeros((70, 8), np.float32)
    logits[[66, 31], 7] = np.nan
    assert every_schedule(Subject(map_id, {"E": 8, "K": 2}, params), {"logits": logits}) == {32}


@pytest.mark.parametrize("map_id", ["gemm_nt_fp32", "gemv_fp32"])
def test_gemm_refuses(map_id: str) -> None:
    arrays = {"x": np.ones((20, 9), np.float32), "weight": np.ones((7, 9), np.float32)}
    arrays["x"][[12, 5], 8] = np.inf
    assert every_schedule(Subject(map_id, {"K": 9, "N": 7}), arrays) == {6}


@pytest.mark.parametrize("map_id", [ROUTED, BUCKETED])
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_all_tokens_on_one_expert_and_repeated_experts(map_id: str, rows: int) -> None:
    """Segments longer than one tile, an expert twice in a row, and no rows at all."""
    arrays, subject = routed_arrays(rows), Subject(map_id, DIMS)
    arrays["indices"][:] = 3
    expected = subject.oracle(**arrays)["output"]
    for variant in subject.variants:
        for threads in (1, 3):
            status, made = subject.call(arrays, variant, threads)
            assert status == 0
            assert made["output"].tobytes() == expected.tobytes()


def test_weights_may_be_read_only_slices_of_a_fused_tensor() -> None:
    """Gate and up as row ranges of one tensor: strides of their own, not writable."""
    arrays, subject = routed_arrays(), Subject(ROUTED, DIMS)
    fused = np.concatenate([arrays["expert_gate"], arrays["expert_up"]], axis=1)
    fused.flags.writeable = False
    expected = subject.oracle(**arrays)["output"]
    arrays["expert_gate"], arrays["expert_up"] = fused[:, : DIMS["I"]], fused[:, DIMS["I"] :]
    status, made = subject.call(arrays)
    assert status == 0
    assert made["output"].tobytes() == expected.tobytes()


def test_nothing_is_compiled_after_the_build() -> None:
    """Writable, read-only and strided arrays all meet code that the builder compiled; formats share the schedules."""
    arrays = routed_arrays()
    Subject(ROUTED, DIMS).call(arrays)
    Subject(BUCKETED, DIMS).call(arrays, "parallel_bucketed", 2)
    Subject(SHARED, DIMS).call(shared_arrays())
    kernels = by_token.tokens_task, bucketed.bucketed_task, call.run_task
    before = [len(kernel.signatures) for kernel in (*kernels, legs.dots_entry, legs.quantize_entry)]
    assert before[:3] == [1, 1, 1]
    fortran = {name: np.asfortranarray(array) if name == "hidden" else array for name, array in arrays.items()}
    Subject(ROUTED, DIMS).call(fortran, "parallel_workspace", 3)
    assert [len(kernel.signatures) for kernel in (*kernels, legs.dots_entry, legs.quantize_entry)] == before


def test_machine_code_holds_no_fused_multiply_add() -> None:
    Subject(ROUTED, DIMS).call(routed_arrays(1))
    Subject(SHARED, DIMS).call(shared_arrays(1))
    for kind in gating.PARAMETERS:
        gating.activation_leg(kind)
    legs.stored_leg("fp32", host_form())
    routers = softmax.softmax_task, selected.selected_task, sigmoid.sigmoid_task
    for task in routers:
        native_address(task, StaticType(()), *TASK_ARGUMENTS)
    for kernel in (by_token.tokens_task, gating.activate_entry, legs.dots_entry, *routers):
        for signature in kernel.signatures:
            if signature[0].parts[:1] == ("packed",):
                continue  # tiles are looked at where they are tested
            fresh = jit(kernel.py_func)  # code from the disk cache cannot be inspected
            fresh.compile(signature)
            assembly = "\n".join(fresh.inspect_asm().values())
            assert "mul" in assembly
            assert "vfmadd" not in assembly and "vfnmadd" not in assembly and "fmla" not in assembly


def test_preparation_takes_what_its_name_says() -> None:
    arrays, shape = routed_arrays(), (DIMS["E"], DIMS["I"], DIMS["H"])
    made = prepare(arrays["expert_gate"], source_format="q4_k", prepared_format="q4_k_x8", shape=shape)
    assert (made.layout, made.dims) == ("q4_k_x8", shape)
    with pytest.raises(ValueError, match="q5_k is no q4_k gate or up tensor"):
        prepare(arrays["expert_down"], source_format="q5_k", prepared_format="q5_k_x8", shape=shape)
    with pytest.raises(ValueError, match="q4_k cannot be prepared as q5_k_x8"):
        prepare(arrays["expert_gate"], source_format="q4_k", prepared_format="q5_k_x8", shape=shape)


def test_a_weight_in_another_layout_is_refused() -> None:
    arrays, subject = routed_arrays(), Subject(BUCKETED, DIMS)
    raw = arrays["expert_gate"]
    run = load_runner(subject.item, subject.contract, subject.spec("parallel_bucketed"))
    gate = subject.prepared("expert_gate", raw)
    down = subject.prepared("expert_down", arrays["expert_down"])
    rest = np.zeros((11, 512), np.float32), np.zeros(1 << 22, np.uint8), 1
    inputs = arrays["hidden"], arrays["indices"], arrays["routing_weights"]
    with pytest.raises(TypeError, match="takes q5_k_x8"):
        run(*inputs, gate, gate, gate, *rest)
    with pytest.raises(TypeError, match="prepared as q4_k_x8, not ndarray"):
        run(*inputs, raw, gate, down, *rest)
