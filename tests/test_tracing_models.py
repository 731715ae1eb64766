"""Shadows, captures and replays on the toy circuit, which has every feature, and on a real model's bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelmap.bind import BoundPlan, bind, bind_also
from kernelmap.certify.corpus import cases_of as corpus_of
from kernelmap.circuit.loading import circuit_for
from kernelmap.host import load_host, probe_host
from kernelmap.inventory import read_inventory
from kernelmap.models.tracing import Capture, Divergence
from kernelmap.recorded import Recording
from kernelmap.registry import Registry, load_registry
from kernelmap.resolver import cases_of, resolve
from kernelmap.session import Session
from kernelmap.tracing.beside import Beside, Outcome
from kernelmap.tracing.capture import Capturer, all_of, save
from kernelmap.tracing.captured import read_capture
from kernelmap.tracing.choosing import Wanted, shadow_choices
from kernelmap.tracing.replay import replay, replay_all
from kernelmap.vocabulary import Phase
from toy import statement, toy_circuit, toy_packages, toy_registry, weights, write_model

DATA = Path(__file__).parent / "data" / "models"
ROUTED = "moe_swiglu_expert_forward_q4k_q5k"
TOKENS = np.array([3, 1, 4, 1, 5, 9, 2], np.int32)
AVX2 = load_host("avx2_2core")


def every_call(bound: BoundPlan) -> frozenset[Wanted]:
    return frozenset((op.decision.name, op.instance.layer, op.phase) for ops in bound.steps.values() for op in ops)


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[tuple[BoundPlan, Registry, Any]]:
    with toy_packages():
        circuit, registry = toy_circuit(), toy_registry()
        model = write_model(tmp_path / "toy.gguf", weights())
        plan = resolve(circuit.circuit, circuit.source, model, registry, AVX2)
        yield bind(plan, circuit, registry, model, host=AVX2, environ={}), registry, model


def test_every_op_of_the_toy_beside_itself(toy: tuple[BoundPlan, Registry, Any], tmp_path: Path) -> None:
    """Init, state, caches, lists, absent ports: copies of all agree, production gives what it gives alone."""
    bound, registry, model = toy
    chosen = list(zip(cases_of(bound.elaborated), bound.plan.decisions, strict=True))
    others = bind_also(bound, chosen, registry, model, AVX2)
    outcomes: list[Outcome] = []
    capturer = Capturer(bound, every_call(bound), tmp_path)
    session = Session(bound, capacity={"S": 9}, probe=all_of(Beside(others, outcomes.append), capturer))
    parts = []
    for start, size in ((0, 4), (4, 1), (5, 2)):
        given = {"tokens": TOKENS[start : start + size], "positions": np.arange(start, start + size, dtype=np.int32)}
        parts.append((session.decode if size == 1 else session.prefill)(given)["logits"])
    assert np.concatenate(parts).tobytes() == statement(weights(), TOKENS)["logits"].tobytes()
    assert [item.divergence for item in outcomes if item.divergence is not None] == []
    assert len(outcomes) == sum(session.executed.values()) and capturer.uncalled() == []
    for wanted, path in capturer.files.items():
        call = read_capture(path, registry)
        rows = replay(call, registry, AVX2, call.facts.provider, threads=1)
        assert [row.agrees for row in rows if not row.skipped] in ([True], [True, True]), (wanted, rows)


MODEL = read_inventory(DATA / "qwen35moe.gguf")
CIRCUIT = circuit_for(MODEL.architecture)
RECORDING = Recording(DATA / "qwen35moe.acts.npz")
HOST = probe_host()


def with_planted(function: str) -> Registry:
    """The shipped registry and a wrong candidate of the routed experts' group."""
    registry = load_registry()
    item = registry.maps[ROUTED]
    impl = item.impl.model_copy(update={"function": f"planted:{function}", "variants": (item.impl.base,)})
    scratch = tuple(entry.model_copy(update={"name": "workspace"}) for entry in item.scratch[:1])
    made = item.model_copy(update={"id": f"planted_{function}", "impl": impl, "scratch": scratch,
                                   "selection": item.selection.model_copy(update={"priority": 1})})  # fmt: skip
    return registry.with_maps([made])


@pytest.mark.parametrize("function", ["right_experts", "merge_order", "slot_weight_swapped"])
def test_planted_experts_beside_production_on_recorded_activations(function: str, tmp_path: Path) -> None:
    registry, name = with_planted(function), f"planted_{function}"
    plan = resolve(CIRCUIT.circuit, CIRCUIT.source, MODEL, registry, HOST)
    bound = bind(plan, CIRCUIT, registry, MODEL)
    chosen = shadow_choices([f"routed_experts:prefill={name}"], plan, bound.elaborated, registry, HOST)
    outcomes: list[Outcome] = []
    beside = Beside(bind_also(bound, chosen, registry, MODEL, HOST), outcomes.append)
    capturer = Capturer(bound, frozenset({("routed_experts", 2, Phase.PREFILL)}), tmp_path)
    given = RECORDING.inputs(bound.elaborated, Phase.PREFILL)
    outputs = Session(bound, threads=2, probe=all_of(beside, capturer)).prefill(given)
    alone = Session(bound, threads=2).prefill(given)
    assert {n: a.tobytes() for n, a in outputs.items()} == {n: a.tobytes() for n, a in alone.items()}
    found = [item.divergence for item in outcomes]
    assert len(found) == 4 and all((item is None) == (function == "right_experts") for item in found)
    for layer, item in enumerate(found):
        if isinstance(item, Divergence):
            assert (item.layer, item.found.provider, item.differences[0].port) == (layer, name, "output")
    call = read_capture(capturer.files["routed_experts", 2, Phase.PREFILL], registry)
    agree = {row.provider: row.agrees for row in replay_all(call, registry, HOST, threads=2) if not row.skipped}
    assert agree.pop(name) is (function == "right_experts")
    assert {"oracle", ROUTED, f"{ROUTED}_bucketed"} <= set(agree) and all(agree.values())


def test_bf16_and_fp16_survive_a_capture(tmp_path: Path) -> None:
    """A file's reader knows bf16's bits, which numpy holds as uint16, by their size alone."""
    registry = load_registry()
    ported = {
        port.dtype: (group, contract)
        for group, contract in registry.contracts.items()
        for port in (*contract.inputs, *contract.weights)
        if registry.ladders.get(group)
    }
    for dtype in {"bf16", "fp16"} & set(ported):
        group, contract = ported[dtype]
        item = next(item for item in registry.ladders[group] if item.executable)
        case = next(iter(corpus_of(contract, item, item.impl.base, 3, tuple(HOST.isa), 1)))
        status, made = case.expected()
        sides = [*(("input", p) for p in contract.inputs), *(("weight", p) for p in contract.weights)]
        tensors = {f"{side}.{p.name}": a for side, p in sides if (a := case.arrays[p.name]) is not None}
        tensors |= {f"output.{name}": np.asarray(array) for name, array in made.items()}
        absent = {p.name for _, p in sides if case.arrays[p.name] is None}
        facts = Capture(
            schema_version=1, circuit="c", op="o", phase=Phase.PREFILL, provider=item.id, variant="serial", group=group,
            contract=contract.digest, map=item.digest, sources="s", plan="p", threads=1, status=status, dims=case.dims,
            params=case.spec.params, dtypes={n: t for n, t in case.spec.dtypes.items() if n not in absent},
        )  # fmt: skip
        path = tmp_path / f"{dtype}.safetensors"
        save(path, tensors, facts)
        call = read_capture(path, registry)
        for side, port in sides:
            array = tensors.get(f"{side}.{port.name}")
            if array is not None:
                held = call.given[port.name]
                assert held is not None and (held.dtype, held.shape) == (array.dtype, array.shape)
                assert held.tobytes() == array.tobytes()
        assert json.loads(call.facts.model_dump_json())["status"] == 0
    assert {"bf16", "fp16"} & set(ported)
