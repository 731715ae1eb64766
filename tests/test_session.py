"""Sessions on the toy circuit: what they refuse, what they pass to kernels, and what becomes of a failed call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelmap import session as session_module
from kernelmap.bind import BoundOp, BoundPlan, bind
from kernelmap.errors import KernelInputError, KernelmapError
from kernelmap.expressions import SizeExpr
from kernelmap.host import load_host
from kernelmap.models.inventory import Inventory
from kernelmap.models.kernel_map import Scratch
from kernelmap.resolver import resolve
from kernelmap.session import Session
from kernelmap.vocabulary import Phase
from toy import statement, toy_circuit, toy_packages, toy_registry, toy_value, weights, write_model

HOST = load_host("avx2_2core")
TOKENS = np.array([3, 1, 4, 1, 5], np.int32)


@pytest.fixture(autouse=True)
def packages() -> Iterator[None]:
    with toy_packages():
        yield


@pytest.fixture
def model(tmp_path: Path) -> Inventory:
    return write_model(tmp_path / "toy.gguf", weights())


def bound_plan(model: Inventory, value: dict[str, Any] | None = None, folder: Path | None = None,
               scratch: str | None = None) -> BoundPlan:  # fmt: skip
    """The bound toy plan, with an edited circuit or with another scratch size of the attention kernel."""
    circuit, registry = toy_circuit(value, folder), toy_registry()
    if scratch is not None:
        item = registry.maps["toy_attend_fp32"]
        size = Scratch(name="scratch", size_bytes=SizeExpr.parse(scratch))
        registry = registry.with_maps([item.model_copy(update={"scratch": (size,)})])
    plan = resolve(circuit.circuit, circuit.source, model, registry, HOST)
    return bind(plan, circuit, registry, model, host=HOST, environ={})


def given(tokens: np.ndarray[Any, Any] = TOKENS, start: int = 0) -> dict[str, Any]:
    return {"tokens": tokens, "positions": np.arange(start, start + len(tokens), dtype=np.int32)}


def refusal(call: Any, *arguments: Any) -> Any:
    with pytest.raises(KernelmapError) as caught:
        call(*arguments)
    (problem,) = caught.value.diagnostics
    return problem


def test_a_phase_that_the_plan_lacks(model: Inventory) -> None:
    bound = bound_plan(model)
    bound = replace(bound, steps={phase: ops for phase, ops in bound.steps.items() if phase is not Phase.DECODE})
    session = Session(bound, capacity={"S": 9})
    assert refusal(session.decode, given(TOKENS[:1])).code == "KM521"


def test_a_list_that_nothing_was_appended_to(model: Inventory, tmp_path: Path) -> None:
    value = toy_value()
    mean = {"op": "toy_mean", "equivalence_group": "toy_mean_fp32", "inputs": {"history": "carry.history"}}
    value["blocks"]["embed"]["ops"].append({"name": "early", **mean})
    session = Session(bound_plan(model, value, tmp_path), capacity={"S": 9})
    assert refusal(session.prefill, given()).code == "KM524"


@pytest.mark.parametrize(
    ("capacity", "told"),
    [({}, "dynamic dim S"), ({"S": 9, "Z": 1}, "no dynamic dim 'Z'"), ({"S": -1}, "at least 0, not -1")],
)
def test_capacity_gives_the_dims_of_state(model: Inventory, capacity: dict[str, int], told: str) -> None:
    problem = refusal(lambda: Session(bound_plan(model), capacity=capacity))
    assert problem.code == "KM525" and told in problem.message


@pytest.mark.parametrize("size", ["R - 100", "9223372036854775807 * R"])
def test_a_scratch_size_that_cannot_be(model: Inventory, size: str) -> None:
    session = Session(bound_plan(model, scratch=size), capacity={"S": 9})
    problem = refusal(session.prefill, given())
    assert problem.code == "KM526" and "attend@0: scratch scratch" in problem.message


def test_no_memory_for_the_arena(model: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(bound_plan(model), capacity={"S": 9})

    class NoMemory:
        """Numpy, on a machine that has nothing left."""

        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def empty(self, *_shape: Any) -> Any:
            raise MemoryError

    session._arena = np.empty(0, np.uint8)
    monkeypatch.setattr(session_module, "np", NoMemory())
    assert refusal(session.prefill, given()).code == "KM527"


def test_no_variant_may_run(model: Inventory) -> None:
    """The registry demands a base variant; a plan without one is refused at the call, not run by whatever is left."""
    bound = bound_plan(model)

    def without_base(op: BoundOp) -> BoundOp:
        return replace(op, variants=tuple(v for v in op.variants if v.plan.name == "wide" or len(op.variants) == 1))

    decode = tuple(without_base(op) for op in bound.steps[Phase.DECODE])
    session = Session(replace(bound, steps={**bound.steps, Phase.DECODE: decode}), capacity={"S": 9})
    problem = refusal(session.decode, given(TOKENS[:1]))
    assert problem.code == "KM532" and "attend@0" in problem.message


def test_a_refused_row_is_named_with_op_and_layer(model: Inventory) -> None:
    session = Session(bound_plan(model), capacity={"S": 4})
    with pytest.raises(KernelInputError) as caught:
        session.prefill(given())
    (problem,) = caught.value.diagnostics
    assert problem.code == "KM530"
    assert problem.message == "attend layer 0 (prefill): toy_attend_fp32 refuses row 4 of its input"


def test_a_failed_call_leaves_no_half_written_state_behind(model: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer 1 had overwritten its memory when layer 2 failed: no later call may build on that."""
    from toy_providers import ops

    broken = [False]
    mlp = ops.mlp

    def builder(spec: Any) -> Any:
        run_mlp = mlp(spec)
        calls = [0]

        def run(x: Any, gate: Any, up: Any, down: Any, y: Any, threads: int) -> int:
            calls[0] += 1
            return 1 if broken[0] and calls[0] % 3 == 0 else run_mlp(x, gate, up, down, y, threads)

        return run

    monkeypatch.setattr(ops, "mlp", builder)
    session = Session(bound_plan(model), capacity={"S": 9})
    expected = statement(weights(), TOKENS)["logits"]
    np.testing.assert_array_equal(session.prefill(given(TOKENS[:3]))["logits"], expected[:3])
    broken[0] = True
    assert "mlp layer 2" in refusal(session.prefill, given(TOKENS[3:], 3)).message
    broken[0] = False
    assert refusal(session.prefill, given(TOKENS[3:], 3)).code == "KM528"
    assert refusal(session.decode, given(TOKENS[3:4], 3)).code == "KM528"
    session.reset()
    np.testing.assert_array_equal(session.prefill(given())["logits"], expected)


def test_wrong_inputs_leave_the_state_as_it_was(model: Inventory) -> None:
    session = Session(bound_plan(model), capacity={"S": 9})
    session.prefill(given(TOKENS[:3]))
    assert refusal(session.prefill, {"tokens": TOKENS}).code == "KM522"
    expected = statement(weights(), TOKENS)["logits"]
    np.testing.assert_array_equal(session.prefill(given(TOKENS[3:], 3))["logits"], expected[3:])


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_kernel_gets_the_session_s_threads(
    model: Inventory, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    from toy_providers import ops

    seen: list[int] = []

    def builder(spec: Any) -> Any:
        def run(a: Any, b: Any, y: Any, threads: int) -> int:
            seen.append(threads)
            y[...] = a + b
            return 0

        return run

    monkeypatch.setattr(ops, "add", builder)
    out = Session(bound_plan(model), threads=threads, capacity={"S": 9}).prefill(given())
    assert seen == [threads] * 7
    np.testing.assert_array_equal(out["logits"], statement(weights(), TOKENS)["logits"])


def test_what_ran_is_what_was_selected(model: Inventory) -> None:
    bound = bound_plan(model)
    session = Session(bound, capacity={"S": 9})
    session.prefill(given(TOKENS[:4]))
    session.decode(given(TOKENS[4:], 4))
    selected = {(op.name, phase, op.map.id): 1 for phase, ops in bound.steps.items() for op in ops}
    assert dict(session.executed) == selected
    order = [(e.op, e.layer) for e in session.trace if e.phase is Phase.DECODE]
    assert order == [(op.decision.name, op.instance.layer) for op in bound.steps[Phase.DECODE]]


def test_an_observer_sees_every_op_before_it_runs(model: Inventory) -> None:
    bound = bound_plan(model)
    seen: list[tuple[str, int, int]] = []
    Session(bound, capacity={"S": 9}).prefill(given(), lambda *event: seen.append(event))
    ops = bound.steps[Phase.PREFILL]
    assert seen == [(op.name, index, len(ops)) for index, op in enumerate(ops)]


def test_results_do_not_alias_the_arena(model: Inventory) -> None:
    session = Session(bound_plan(model), capacity={"S": 9})
    first = session.prefill(given(TOKENS[:3]))
    kept = {name: array.copy() for name, array in first.items()}
    session.prefill(given(TOKENS[3:], 3))
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])


def test_a_second_call_at_once_is_refused(model: Inventory) -> None:
    """Two calls in one arena: as threads, kernels wrote past its end and the process died."""
    session = Session(bound_plan(model), capacity={"S": 9})
    problems = []

    def again(_what: str, _done: int, _total: int) -> None:
        problems.append(refusal(session.prefill, given()).code)
        problems.append(refusal(session.reset).code)

    want = Session(bound_plan(model), capacity={"S": 9}).prefill(given())
    made = session.prefill(given(), again)
    assert problems and set(problems) == {"KM529"}
    assert all(made[name].tobytes() == array.tobytes() for name, array in want.items())
    session.reset()
    assert session.prefill(given())


@pytest.mark.parametrize("size", [10**14, 10**18, 10**30])
def test_capacity_beyond_memory_is_an_error(model: Inventory, size: int) -> None:
    plan = bound_plan(model)
    assert refusal(lambda: Session(plan, capacity={"S": size})).code == "KM527"


def test_rows_of_unequal_length_are_no_array(model: Inventory) -> None:
    session = Session(bound_plan(model), capacity={"S": 9})
    problem = refusal(session.prefill, given() | {"tokens": [[1], [2, 3]]})
    assert problem.code == "KM523" and "tokens" in problem.message
