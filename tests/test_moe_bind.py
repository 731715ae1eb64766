"""Expert blocks through resolve, bind and session: prepared tensors that exist once, and fused gate and up tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kernelmap.bind import BoundPlan, bind
from kernelmap.circuit.loading import CircuitFile, circuit_for
from kernelmap.host import probe_host
from kernelmap.inventory import read_inventory
from kernelmap.models.circuit import Circuit
from kernelmap.models.loading import validate
from kernelmap.models.policy import Pin, Policy
from kernelmap.recorded import Recording
from kernelmap.registry import load_registry
from kernelmap.resolver import resolve
from kernelmap.session import Session
from kernelmap.vocabulary import Phase
from support import source_of

DATA = Path(__file__).parent / "data" / "models"
REGISTRY = load_registry()
PRODUCTION = "moe_swiglu_expert_forward_q4k_q5k"
BUCKETED, PACKED = f"{PRODUCTION}_bucketed", f"{PRODUCTION}_packed"


def bound(circuit: CircuitFile, path: Path, *pins: tuple[str, Phase, str], exclude: tuple[str, ...] = ()) -> BoundPlan:
    model = read_inventory(path)
    policy = Policy(pin=tuple(Pin(op=op, phase=phase, id=name) for op, phase, name in pins), exclude=exclude)
    plan = resolve(circuit.circuit, circuit.source, model, REGISTRY, probe_host(), policy)
    return bind(plan, circuit, REGISTRY, model)


def test_a_tensor_prepared_for_prefill_and_decode_exists_once() -> None:
    """Bucketed and packed name the same layouts; the bytes of stored weights come out in both phases."""
    circuit, model = circuit_for("qwen35moe"), DATA / "qwen35moe.gguf"
    prefill, decode = ("routed_experts", Phase.PREFILL, BUCKETED), ("routed_experts", Phase.DECODE, PACKED)
    both, alone = bound(circuit, model, prefill, decode), bound(circuit, model, prefill, exclude=(PACKED,))
    assert both.prepared_bytes == alone.prepared_bytes > 0
    weights = {
        (phase, step.name, port): weight
        for phase, steps in both.steps.items()
        for step in steps
        if step.decision.name == "routed_experts"
        for port, weight in step.weights.items()
    }
    assert len(weights) == 2 * 4 * 3
    for (phase, name, port), weight in weights.items():
        if phase is Phase.PREFILL:
            assert weight is weights[Phase.DECODE, name, port]
    recording = Recording(DATA / "qwen35moe.acts.npz")
    stored = bound(circuit, model, exclude=(BUCKETED, PACKED))
    for phase, run in ((Phase.PREFILL, Session.prefill), (Phase.DECODE, Session.decode)):
        given = recording.inputs(both.elaborated, phase)
        session = Session(both, threads=2)
        made, expected = run(session, given), run(Session(stored), given)
        assert {entry.provider for entry in session.trace if entry.op == "routed_experts"} == {
            BUCKETED if phase is Phase.PREFILL else PACKED
        }
        assert {name: array.tobytes() for name, array in made.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }


def test_one_token_runs_its_experts_in_parallel() -> None:
    production = bound(circuit_for("qwen35moe"), DATA / "qwen35moe.gguf", exclude=(BUCKETED, PACKED))
    session = Session(production, threads=2)
    recording = Recording(DATA / "qwen35moe.acts.npz")
    session.decode(recording.inputs(production.elaborated, Phase.DECODE))
    session.prefill(recording.inputs(production.elaborated, Phase.PREFILL))
    variants = [entry.variant for entry in session.trace if entry.op == "routed_experts"]
    assert variants == ["parallel_experts"] * 4 + ["parallel_workspace"] * 4


def fused_circuit(fused: bool) -> CircuitFile:
    """A routed block whose gate and up are two tensors, or row ranges of one."""
    name = "blk.{layer}.ffn_gate_up_exps.weight"
    gate: Any = {"tensor": name, "rows": [0, "I"]} if fused else "blk.{layer}.ffn_gate_exps.weight"
    up: Any = {"tensor": name, "rows": ["I", "2 * I"]} if fused else "blk.{layer}.ffn_up_exps.weight"
    op = {
        "name": "experts", "op": "moe_swiglu_expert_mlp",
        "equivalence_group": (
            "{expert_gate}_{expert_gate.act}_gate_up_ggml_swiglu_{expert_down}_{expert_down.act}_down_weighted_fp32"
        ),
        "inputs": {"hidden": "hidden", "indices": "indices", "routing_weights": "weights"},
        "weights": {"expert_gate": gate, "expert_up": up, "expert_down": "blk.{layer}.ffn_down_exps.weight"},
    }  # fmt: skip
    value = {
        "schema_version": 1, "id": "fused", "summary": "fused", "architectures": ["qwen3moe"],
        "config": {"n_layer": {"key": "{arch}.block_count", "type": "int"}}, "dims": {"H": 256, "I": 256, "K": 2},
        "dynamic_dims": ["R"],
        "inputs": [
            {"name": "hidden", "dtype": "fp32", "shape": ["R", "H"], "scope": "layer"},
            {"name": "indices", "dtype": "i32", "shape": ["R", "K"], "scope": "layer"},
            {"name": "weights", "dtype": "fp32", "shape": ["R", "K"], "scope": "layer"},
        ],
        "blocks": {"main": {"ops": [op]}},
        "layers": {"count": "config.n_layer", "rules": [{"block": "main"}]},
        "outputs": [{"name": "y", "value": "experts.output", "scope": "layer"}],
    }  # fmt: skip
    source = source_of(value, "fused.json")
    return CircuitFile(validate(source, Circuit), source)


def write_model(path: Path, data: Any, fused: bool) -> Path:
    kinds = {name: gguf.GGMLQuantizationType[kind.upper()] for name, kind in json.loads(str(data["formats"])).items()}
    tensors = {name: data[f"weight/{name}"] for name in kinds if "_exps" in name}
    if fused:
        gate, up = tensors.pop("1/ffn_gate_exps.weight"), tensors.pop("1/ffn_up_exps.weight")
        tensors["1/ffn_gate_up_exps.weight"] = np.concatenate([gate, up], axis=1)
        kinds["1/ffn_gate_up_exps.weight"] = kinds["1/ffn_gate_exps.weight"]
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(1)
    for name, array in tensors.items():
        writer.add_tensor(f"blk.0.{name.partition('/')[2]}", np.ascontiguousarray(array), raw_dtype=kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("suffix", ["", "_bucketed", "_packed"])
def test_bind_passes_row_views_of_a_fused_tensor(tmp_path: Path, suffix: str) -> None:
    """The same outputs as from separate tensors; unprepared weights are views, not copies."""
    data = np.load(DATA / "qwen3moe.moe.npz")
    phase = Phase.DECODE if suffix == "_packed" else Phase.PREFILL
    provider = f"moe_swiglu_expert_forward_q4k_q4k{suffix}"
    pins = [("experts", at, provider) for at in ([phase] if suffix else [Phase.PREFILL, Phase.DECODE])]
    given = {f"{name}/0": data[f"prefill/1/{role}"] for name, role in
             (("hidden", "hidden"), ("indices", "topk"), ("weights", "weights"))}  # fmt: skip
    made = {}
    for fused in (False, True):
        plan = bound(fused_circuit(fused), write_model(tmp_path / f"{fused}.gguf", data, fused), *pins)
        session = Session(plan, threads=3)
        found = session.decode(given) if phase is Phase.DECODE else session.prefill(given)
        made[fused] = found["y/0"].tobytes()
        weights = plan.steps[Phase.PREFILL][0].weights
        if fused and not suffix:
            gate, up = weights["expert_gate"], weights["expert_up"]
            assert gate.strides[0] == 2 * 256 * gate.shape[2] and not gate.flags.owndata
            assert up.ctypes.data - gate.ctypes.data == 256 * gate.shape[2]
    assert made[True] == made[False]
    expected = data["prefill/1/out"].astype(np.float64)
    error = np.frombuffer(made[True], np.float32).reshape(expected.shape) - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 1e-3
