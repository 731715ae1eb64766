"""What elaboration refuses beside the mistakes of `test_toy_hybrid`: limits of contracts, phases, scopes, storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmap.circuit.elaborate import elaborate, try_elaborate
from kernelmap.circuit.storage import reference_inventory
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.expressions import Predicate
from toy import toy_circuit, toy_packages, toy_registry, toy_value

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def packages() -> Iterator[None]:
    with toy_packages():
        yield


def op(value: Json, block: str, name: str) -> Json:
    found: Json = next(item for item in value["blocks"][block]["ops"] if item["name"] == name)
    return found


def problems(folder: Path, edit: Callable[[Json], Any], **limits: Any) -> list[Diagnostic]:
    """Problems of the edited circuit on its reference storage; ``limits`` change the contract of `toy_mlp_fp32`."""
    value = toy_value()
    edit(value)
    contracts = dict(toy_registry().contracts)
    contracts["toy_mlp_fp32"] = contracts["toy_mlp_fp32"].model_copy(update=limits)
    circuit = toy_circuit(value, folder)
    try:
        inventory = reference_inventory(circuit.circuit, circuit.source)
    except KernelmapError as error:
        return list(error.diagnostics)
    return try_elaborate(circuit.circuit, circuit.source, inventory, contracts)[1]


def places(found: list[Diagnostic]) -> list[tuple[str, str]]:
    return [(item.code, item.place.pointer) for item in found if item.place is not None]


def nothing(_value: Json) -> None:
    return None


def double_scan(value: Json) -> None:
    value["blocks"]["embed"]["ops"].append(op(value, "scan", "scan") | {"inputs": {"x": "embedded"}})


def two_of_a_name(value: Json) -> None:
    tensors = value["storage"]["tensors"]
    tensors.append(next(item for item in tensors if item["name"] == "token_embd.weight"))


EDITS: list[tuple[str, str, Callable[[Json], Any]]] = [
    ("KM306", "/blocks/mlp/ops/0/weights/up/rows/1", lambda v: op(v, "mlp", "mlp")["weights"]["up"].update(
        rows=[6, "0 - I"])),
    ("KM307", "/state/0/dtype", lambda v: v["state"][0].update(dtype="{kv}")),
    ("KM308", "/blocks/head/ops/3/weights/weight", lambda v: op(v, "head", "logits")["weights"].update(
        weight={"any_of": ["output.weight", "lm_head.weight"]})),
    ("KM309", "/blocks/plain/ops/0/outputs/z", lambda v: op(v, "plain", "plain").update(outputs={"z": "plained"})),
    ("KM309", "/blocks/plain/ops/0/op", lambda v: op(v, "plain", "plain").update(op="toy_add")),
    ("KM309", "/blocks/plain/ops/0/dims/Q", lambda v: op(v, "plain", "plain").update(dims={"Q": 3})),
    ("KM309", "/blocks/plain/ops/0/params/q", lambda v: op(v, "plain", "plain").update(params={"q": 3})),
    ("KM311", "/blocks/plain/ops/0/inputs/x", lambda v: op(v, "plain", "plain")["inputs"].update(x="tokens")),
    ("KM312", "/blocks/plain/ops/0/inputs/x", lambda v: op(v, "plain", "plain")["inputs"].update(x="carry.history")),
    ("KM313", "/blocks/ropes/ops/0/dims", lambda v: op(v, "ropes", "rope")["dims"].update(H="S")),
    ("KM317", "/blocks/head/ops/1/inputs/b", lambda v: op(v, "head", "mean").update(phases=["prefill"])),
    ("KM317", "/blocks/embed/ops/0/inputs/tokens", lambda v: op(v, "embed", "embed").update(phases=["init"])),
    ("KM319", "/blocks/embed/ops/1/state/memory", double_scan),
    ("KM319", "/blocks/plain/carry/y", lambda v: v["blocks"]["plain"].update(carry={"y": "plain.y"})),
    ("KM321", "/storage/tensors", two_of_a_name),
    ("KM321", "", lambda v: v.pop("storage")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "pointer", "edit"), EDITS, ids=[f"{c}{p}" for c, p, _ in EDITS])
def test_each_mistake_is_placed(tmp_path: Path, code: str, pointer: str, edit: Callable[[Json], Any]) -> None:
    found = places(problems(tmp_path, edit))
    assert (code, pointer) in found, found


def test_the_contract_limits_the_dims(tmp_path: Path) -> None:
    """A multiple or a predicate that the model's sizes break is refused for each distinct op, with the sizes."""
    found = problems(tmp_path, nothing, alignment={"I": 4})
    assert places(found) == [("KM314", "/blocks/mlp/ops/0")]
    assert "I = 6 is no multiple of 4" in found[0].message and "blk.0.down.weight is fp32" in found[0].message
    found = problems(tmp_path, nothing, requires=(Predicate.parse("I >= H"),))
    assert places(found) == [("KM315", "/blocks/mlp/ops/0")]
    assert "I >= H" in found[0].message and "H = 8, I = 6" in found[0].message


def test_a_value_of_one_phase_is_no_value_of_the_other(tmp_path: Path) -> None:
    found = problems(tmp_path, lambda v: op(v, "mlp", "mlp").update(phases=["decode"]))
    assert places(found) == [("KM317", "/blocks/mlp/ops/1/inputs/b")]
    assert "in prefill" in found[0].message


def test_both_phases_may_have_an_op_of_their_own(tmp_path: Path) -> None:
    """An op that only one phase runs is fine as long as that phase alone reads it: outputs may differ by phase."""
    assert problems(tmp_path, lambda v: op(v, "head", "count").update(phases=["decode"])) == []


def test_layers_share_what_is_equal() -> None:
    """One decision serves all layers whose group, shapes and params agree; a different param makes another."""
    circuit, registry = toy_circuit(), toy_registry()
    inventory = reference_inventory(circuit.circuit, circuit.source)
    instances = elaborate(circuit.circuit, circuit.source, inventory, registry.contracts).instances
    shared = {name: {id(i.shared) for i in instances if i.shared.op.name == name} for name in ("mlp", "attend")}
    assert len(shared["mlp"]) == 1, "three layers, one shape"
    assert len(shared["attend"]) == 2, "windows 3 and 2"
