"""The first real run: a model's own bytes through resolve, bind and session, against llama.cpp's recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelmap.bind import BoundPlan, bind
from kernelmap.circuit.loading import circuit_for
from kernelmap.errors import BindError, KernelInputError, KernelmapError
from kernelmap.host import load_host, probe_host
from kernelmap.inventory import open_tensor, read_inventory
from kernelmap.models.policy import Policy
from kernelmap.recorded import Recording, compare
from kernelmap.registry import load_registry
from kernelmap.resolver import resolve
from kernelmap.session import Session
from kernelmap.spec import BuildSpec
from kernelmap.vocabulary import Phase

DATA = Path(__file__).parent / "data" / "models"
BUCKETED = "moe_swiglu_expert_forward_q4k_q5k_bucketed"
REGISTRY = load_registry()
MODEL = read_inventory(DATA / "qwen35moe.gguf")
CIRCUIT = circuit_for(MODEL.architecture)
RECORDING = Recording(DATA / "qwen35moe.acts.npz")
PHASES = (Phase.PREFILL, Phase.DECODE)


def bound(**policy: Any) -> BoundPlan:
    plan = resolve(CIRCUIT.circuit, CIRCUIT.source, MODEL, REGISTRY, probe_host(), Policy(**policy))
    return bind(plan, CIRCUIT, REGISTRY, MODEL)


@pytest.fixture(scope="module")
def production() -> BoundPlan:
    return bound()


@pytest.fixture(scope="module")
def bucketed() -> BoundPlan:
    """Packed weights in prefill alone: decode reads them as stored, so both forms of a tensor are there."""
    return bound(exclude=("moe_swiglu_expert_forward_q4k_q5k_packed",))


def run(session: Session, phase: Phase) -> dict[str, np.ndarray]:
    given = RECORDING.inputs(session.bound.elaborated, phase)
    return session.prefill(given) if phase is Phase.PREFILL else session.decode(given)


@pytest.mark.parametrize("phase", PHASES)
def test_every_layer_agrees_with_llama_cpp(production: BoundPlan, phase: Phase) -> None:
    session = Session(production, threads=2)
    outputs = run(session, phase)
    found = list(RECORDING.compare(production.elaborated, phase, outputs))
    assert len(found) == 3 * 4
    for item in found:
        assert item.relative_rms <= 1e-3, item
        if phase is Phase.PREFILL:
            assert item.median_row <= 1e-6, item
    session.check_counters()


def oracle_block(layer: int, hidden: np.ndarray) -> dict[str, np.ndarray]:
    """The block by the oracles alone."""
    import importlib

    weights = {
        t.name.removeprefix(f"blk.{layer}."): t.name for t in MODEL.tensors if t.name.startswith(f"blk.{layer}.")
    }

    def tensor(name: str) -> np.ndarray:
        return open_tensor(MODEL, weights[f"{name}.weight"])

    def call(group: str, dims: dict[str, int], params: dict[str, Any], **given: np.ndarray) -> dict[str, np.ndarray]:
        contract = REGISTRY.contracts[group]
        spec = BuildSpec(
            provider="oracle", group=group, op=contract.op, variant="oracle", dims=dims, params=params,
            dtypes={port.name: port.dtype for port in contract.ports.values()}, arithmetic=contract.arithmetic,
        )  # fmt: skip
        module, _, name = contract.oracle.partition(":")
        return dict(getattr(importlib.import_module(module), name)(spec, **given))

    logits = call(
        "fp32_weight_fp32_internal_fp32_output", {"N": 8, "K": 256}, {}, x=hidden, weight=tensor("ffn_gate_inp")
    )["y"]
    router = call("llama_full_softmax_topk_selected_renorm_fp32", {"E": 8, "K": 3}, {"scale": 1.0}, logits=logits)
    moe = call(
        "q4_k_q8_k_gate_up_ggml_swiglu_q5_k_q8_k_down_weighted_fp32", {"H": 256, "I": 256, "E": 8, "K": 3}, {},
        hidden=hidden, indices=router["indices"], routing_weights=router["weights"],
        expert_gate=tensor("ffn_gate_exps"), expert_up=tensor("ffn_up_exps"), expert_down=tensor("ffn_down_exps"),
    )["output"]  # fmt: skip
    out = call(
        "q8_0_q8_0_shared_swiglu_fp32_sigmoid_gate_then_routed_add", {"H": 256, "I": 256}, {},
        hidden=hidden, routed=moe,
        shared_gate=tensor("ffn_gate_shexp"), shared_up=tensor("ffn_up_shexp"), shared_down=tensor("ffn_down_shexp"),
        gate_input=tensor("ffn_gate_inp_shexp").reshape(-1),
    )["output"]  # fmt: skip
    return {"router_logits": logits, "moe_out": moe, "ffn_out": out}


@pytest.mark.parametrize("phase", PHASES)
def test_byte_identical_to_the_oracles(production: BoundPlan, phase: Phase) -> None:
    outputs = run(Session(production), phase)
    for layer in range(4):
        expected = oracle_block(layer, RECORDING.inputs(production.elaborated, phase)[f"ffn_norm/{layer}"])
        for name, array in expected.items():
            assert array.tobytes() == outputs[f"{name}/{layer}"].tobytes(), (name, layer)


@pytest.mark.parametrize("phase", PHASES)
def test_provider_and_threads_change_nothing(production: BoundPlan, bucketed: BoundPlan, phase: Phase) -> None:
    reference = run(Session(production, threads=1), phase)
    stored = bound(exclude=(BUCKETED, "moe_swiglu_expert_forward_q4k_q5k_packed"))
    for plan in (production, bucketed, stored):
        for threads in (1, 2, 3, 8):
            outputs = run(Session(plan, threads=threads), phase)
            assert {name: array.tobytes() for name, array in outputs.items()} == {
                name: array.tobytes() for name, array in reference.items()
            }, (plan.plan.digest, threads)


def test_the_bucketed_provider_really_ran(bucketed: BoundPlan) -> None:
    session = Session(bucketed)
    run(session, Phase.PREFILL)
    providers = {entry.provider for entry in session.trace if entry.op == "routed_experts"}
    assert providers == {BUCKETED}
    assert bucketed.prepared_bytes == sum(
        item.bytes for item in bucketed.plan.residency if item.form in ("q4_k_x8", "q5_k_x8")
    )
    assert {item.form for item in bucketed.plan.residency if "ffn_gate_exps" in item.tensor} == {"q4_k", "q4_k_x8"}


def test_float_path_without_activation_quantization_fails_the_bound() -> None:
    """The bound of 1e-3 tells a faithful kernel from one that skips quantizing the activation (1e-2)."""
    import gguf

    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(DATA / "qwen35moe.gguf").tensors}

    def weight(name: str) -> np.ndarray:
        found = reader[name]
        return np.asarray(gguf.quants.dequantize(found.data, found.tensor_type), np.float64)

    hidden = RECORDING.find(Phase.PREFILL, "attn_post_norm-0")
    ids, slots = (
        RECORDING.find(Phase.PREFILL, "ffn_moe_topk-0"),
        RECORDING.find(Phase.PREFILL, "ffn_moe_weights_norm-0"),
    )
    assert hidden is not None and ids is not None and slots is not None
    gate, up, down = (weight(f"blk.0.ffn_{part}_exps.weight") for part in ("gate", "up", "down"))
    out = np.zeros(hidden.shape)
    for row in range(len(hidden)):
        for expert, share in zip(ids[row], slots[row], strict=True):
            g, u = gate[expert] @ hidden[row], up[expert] @ hidden[row]
            out[row] += share * (down[expert] @ (g / (1 + np.exp(-g)) * u))
    reference = RECORDING.find(Phase.PREFILL, "ffn_moe_out-0")
    assert reference is not None
    assert compare("moe_out", 0, out.astype(np.float32), reference).relative_rms > 1e-3


def test_nan_names_op_layer_and_row(production: BoundPlan) -> None:
    given = {name: array.copy() for name, array in RECORDING.inputs(production.elaborated, Phase.PREFILL).items()}
    given["ffn_norm/2"][5, 7] = np.nan
    with pytest.raises(KernelInputError) as caught:
        Session(production, threads=2).prefill(given)
    (problem,) = caught.value.diagnostics
    assert problem.code == "KM530" and "layer 2" in problem.message and "row 5" in problem.message


def test_bind_refuses_what_changed_since_the_plan() -> None:
    plan = resolve(CIRCUIT.circuit, CIRCUIT.source, MODEL, REGISTRY, probe_host())

    def codes(**changed: Any) -> set[str]:
        arguments: dict[str, Any] = {
            "plan": plan,
            "circuit": CIRCUIT,
            "registry": REGISTRY,
            "inventory": MODEL,
            **changed,
        }
        with pytest.raises(BindError) as caught:
            bind(**arguments)
        return {item.code for item in caught.value.diagnostics}

    tensors = MODEL.tensors[1:]
    assert codes(inventory=MODEL.model_copy(update={"tensors": tensors})) == {"KM502"}
    assert codes(registry=REGISTRY.without(["gemv_fp32"])) == {"KM503"}
    item = REGISTRY.maps["gemm_nt_fp32"]
    changed = item.model_copy(update={"selection": item.selection.model_copy(update={"priority": 999})})
    assert codes(registry=REGISTRY.with_maps([changed])) == {"KM503"}
    partial = CIRCUIT.circuit.model_copy(update={"partial": False})
    assert codes(circuit=type(CIRCUIT)(partial, CIRCUIT.source)) == {"KM501"}


def test_bind_demands_the_features_that_the_plan_needs() -> None:
    item = REGISTRY.maps["gemm_nt_fp32"]
    needs = item.model_copy(update={"requires": item.requires.model_copy(update={"isa": ("avx512vnni",)})})
    registry = REGISTRY.with_maps([needs])
    plan = resolve(CIRCUIT.circuit, CIRCUIT.source, MODEL, registry, load_host("avx512_vnni_server"))
    with pytest.raises(BindError) as caught:
        bind(plan, CIRCUIT, registry, MODEL, host=load_host("avx2_2core"))
    assert [item.code for item in caught.value.diagnostics] == ["KM505"]
    with pytest.raises(KernelmapError):
        resolve(CIRCUIT.circuit, CIRCUIT.source, MODEL, registry, load_host("avx2_2core"))


def test_damaged_weights_are_refused_at_bind(tmp_path: Path) -> None:
    """An infinite block factor in the model file: tensor and row are named, and nothing runs."""
    data = bytearray((DATA / "qwen35moe.gguf").read_bytes())
    tensor = MODEL.tensor("blk.1.ffn_down_shexp.weight")
    assert tensor.offset is not None and tensor.format == "q8_0"
    row_bytes = tensor.nbytes // tensor.shape[0]
    data[tensor.offset + 7 * row_bytes + 34 : tensor.offset + 7 * row_bytes + 36] = b"\x00\x7c"
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    model = read_inventory(path)
    plan = resolve(CIRCUIT.circuit, CIRCUIT.source, model, REGISTRY, probe_host())
    with pytest.raises(BindError) as caught:
        bind(plan, CIRCUIT, REGISTRY, model)
    (problem,) = caught.value.diagnostics
    assert problem.code == "KM511" and "blk.1.ffn_down_shexp.weight" in problem.message and "row 7" in problem.message


def test_a_refusing_preparation_hook_names_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise ValueError("row 3: not to my liking")

    monkeypatch.setattr("kernelmap_providers.experts.prepare.ck_moe_prepare_q4k_gate_up_vnni_x8", refuse)
    with pytest.raises(BindError) as caught:
        bound()
    (problem,) = caught.value.diagnostics
    assert problem.code == "KM512" and "blk.0.ffn_gate_exps.weight" in problem.message and "row 3" in problem.message
