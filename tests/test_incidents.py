"""Incidents of this field, kept as tests: each must be an error that names the tensor, never a wrong number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelmap.circuit.loading import CircuitFile, read_circuit
from kernelmap.circuit.storage import reference_inventory
from kernelmap.errors import KernelmapError
from kernelmap.host import load_host
from kernelmap.inventory import read_inventory
from kernelmap.models.inventory import Inventory, TensorInfo
from kernelmap.models.policy import Policy, PolicyRoute
from kernelmap.registry import load_registry
from kernelmap.resolver import resolve

ROOT = Path(__file__).parent.parent
REGISTRY = load_registry()
HOST = load_host("avx2_2core")
MODEL = read_inventory(ROOT / "tests/data/models/qwen35moe.gguf")
SOFTMAX, SIGMOID = "moe_softmax_topk_router_llama_f32", "group_limited_topk_router_sigmoid_f32"


def stored_as(inventory: Inventory, name: str, format: str) -> Inventory:
    tensors = tuple(
        TensorInfo(name=t.name, format=format, shape=t.shape) if t.name == name else t for t in inventory.tensors
    )
    return inventory.model_copy(update={"tensors": tensors})


def edited(tmp_path: Path, change: Any) -> CircuitFile:
    value = json.loads((ROOT / "circuits/qwen35_moe.json").read_text(encoding="utf-8"))
    change({op["name"]: op for op in value["blocks"]["moe"]["ops"]}, value)
    path = tmp_path / "qwen35_moe.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return read_circuit(str(path))


def problems(circuit: CircuitFile, inventory: Inventory, registry: Any = REGISTRY, **policy: Any) -> Any:
    with pytest.raises(KernelmapError) as caught:
        resolve(circuit.circuit, circuit.source, inventory, registry, HOST, Policy(**policy))
    return caught.value.diagnostics


def test_q6_k_rows_are_never_read_at_q5_k_stride(tmp_path: Path) -> None:
    """A circuit that fixed its group instead of following the stored format gave all-zero logits."""
    group = "q4_k_q8_k_gate_up_ggml_swiglu_q5_k_q8_k_down_weighted_fp32"

    def fix_the_group(ops: Any, _value: Any) -> None:
        ops["routed_experts"]["equivalence_group"] = group

    model = stored_as(MODEL, "blk.2.ffn_down_exps.weight", "q6_k")
    found = problems(edited(tmp_path, fix_the_group), model)
    assert [item.code for item in found] == ["KM310"]
    assert "blk.2.ffn_down_exps.weight is stored as q6_k" in found[0].message and "q5_k" in found[0].message
    assert found[0].place is not None and found[0].place.pointer == "/blocks/moe/ops/2/weights/expert_down"


def test_a_stored_format_asks_for_its_own_group() -> None:
    """With the template the stored format decides: another group, and no provider of the old one is looked at."""
    circuit = read_circuit("qwen35_moe")
    model = stored_as(MODEL, "blk.2.ffn_down_exps.weight", "q3_k")
    found = problems(circuit, model)
    assert {item.code for item in found} == {"KM451"}
    assert "blk.2.ffn_down_exps.weight is q3_k" in found[0].message
    assert any("q5_k" in name for name in found[0].near)


def test_an_fp32_contract_refuses_q8_0_bytes(tmp_path: Path) -> None:
    """A contract that was chosen from shapes while the weights were Q8_0 gave NaN."""

    def fix_the_group(ops: Any, _value: Any) -> None:
        ops["router_logits"]["equivalence_group"] = "fp32_weight_fp32_internal_fp32_output"

    model = stored_as(MODEL, "blk.1.ffn_gate_inp.weight", "q8_0")
    found = problems(edited(tmp_path, fix_the_group), model)
    assert [item.code for item in found] == ["KM310"]
    assert "blk.1.ffn_gate_inp.weight is stored as q8_0" in found[0].message and "fp32" in found[0].message


def test_storage_facts_come_from_the_model_not_from_the_reference() -> None:
    circuit = read_circuit("qwen35_moe")
    reference = reference_inventory(circuit.circuit, circuit.source)
    assert len(reference.tensors) == 733
    plan = resolve(circuit.circuit, circuit.source, MODEL, REGISTRY, HOST)
    assert plan.inventory_digest == MODEL.digest != reference.digest
    assert {d.layers for d in plan.decisions} == {(0, 1, 2, 3)}


@pytest.mark.parametrize("gone", [SOFTMAX, SIGMOID])
def test_the_routers_never_stand_in_for_each_other(tmp_path: Path, gone: str) -> None:
    """Also when one is all that is left, and a route names it."""
    left = SIGMOID if gone == SOFTMAX else SOFTMAX

    def ask_for_gone(ops: Any, value: Any) -> None:
        value["routes"] = [{"op": "shared_experts", "allow": "moe_swiglu_shared_forward_q8_0_gated"}]
        if gone == SIGMOID:
            ops["router"]["equivalence_group"] = "sigmoid_group_limited_topk_bias_select_raw_gather_fp32"
            ops["router"]["params"] = {"n_group": 1, "topk_group": 1, "renormalize": "clamp", "scale": 1.0}

    circuit = edited(tmp_path, ask_for_gone)
    registry = REGISTRY.without([gone])
    assert left in registry.maps
    found = problems(circuit, MODEL, registry, routes=(PolicyRoute(op="router", allow=left),))
    assert {item.code for item in found} == {"KM450"}
    assert all("no provider of" in item.message and left not in item.help for item in found)


def test_every_op_gets_its_own_group_only() -> None:
    circuit = read_circuit("qwen35_moe")
    plan = resolve(circuit.circuit, circuit.source, MODEL, REGISTRY, HOST)
    for decision in plan.decisions:
        ladder = {item.id for item in REGISTRY.ladders[decision.group]}
        assert {candidate.id for candidate in decision.candidates} == ladder
        assert decision.provider in ladder
