"""Oracles and providers on the bundled model's own bytes, against what llama.cpp recorded for the same inputs."""

from __future__ import annotations

from functools import cache

import gguf
import numpy as np
import pytest
from calling import BUCKETED, DATA, ROUTED, SHARED, SOFTMAX, Subject

RECORDED = np.load(DATA / "models" / "qwen35moe.acts.npz")
DIMS = {"H": 256, "I": 256, "E": 8, "K": 3}
PHASES = ("prefill", "decode1")
LAYERS = range(4)
Array = np.ndarray


@cache
def tensors() -> dict[str, Array]:
    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(DATA / "models" / "qwen35moe.gguf").tensors}


def weight(layer: int, name: str) -> Array:
    return tensors()[f"blk.{layer}.ffn_{name}.weight"]


def recorded(phase: str, name: str, layer: int) -> Array:
    return RECORDED[f"{phase}/{name}-{layer}"]


def routed_inputs(phase: str, layer: int) -> dict[str, Array]:
    return {
        "hidden": recorded(phase, "attn_post_norm", layer),
        "indices": recorded(phase, "ffn_moe_topk", layer)[:, :3],
        "routing_weights": recorded(phase, "ffn_moe_weights_norm", layer),
        "expert_gate": weight(layer, "gate_exps"),
        "expert_up": weight(layer, "up_exps"),
        "expert_down": weight(layer, "down_exps"),
    }


def shared_inputs(phase: str, layer: int, routed: Array | None = None, gate: Array | None = None) -> dict[str, Array]:
    hidden = recorded(phase, "attn_post_norm", layer)
    return {
        "hidden": hidden,
        "routed": np.zeros_like(hidden) if routed is None else routed,
        "shared_gate": weight(layer, "gate_shexp"),
        "shared_up": weight(layer, "up_shexp"),
        "shared_down": weight(layer, "down_shexp"),
        "gate_input": weight(layer, "gate_inp_shexp").reshape(-1) if gate is None else gate,
    }


def relative_rms(made: Array, reference: Array) -> tuple[float, float]:
    """(of the whole tensor, of the median row)."""
    error = made.astype(np.float64) - reference
    rows = np.sqrt((error**2).mean(axis=1) / (reference.astype(np.float64) ** 2).mean(axis=1))
    return float(np.sqrt((error**2).mean() / (reference.astype(np.float64) ** 2).mean())), float(np.median(rows))


def assert_faithful(made: Array, reference: Array, phase: str) -> None:
    tensor, median = relative_rms(made, reference)
    assert tensor < 1e-3
    if phase == "prefill":
        assert median < 1e-6


def same_bytes(subject: Subject, arrays: dict[str, Array]) -> Array:
    """The oracle's output, which every variant and thread count gives too."""
    expected = subject.oracle(**arrays)
    for variant in subject.variants:
        for threads in (1, 3):
            status, made = subject.call(arrays, variant, threads)
            assert status == 0
            for name, array in expected.items():
                assert made[name].tobytes() == array.tobytes(), (variant, threads, name)
    return expected["output"]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("phase", PHASES)
def test_router_picks_and_weighs_as_recorded(phase: str, layer: int) -> None:
    logits = recorded(phase, "ffn_moe_logits", layer)
    subject = Subject(SOFTMAX, {"E": 8, "K": 3}, {"scale": 1.0})
    expected = subject.oracle(logits=logits)
    for variant in subject.variants:
        status, made = subject.call({"logits": logits}, variant, threads=2)
        assert status == 0
        assert made["indices"].tobytes() == expected["indices"].tobytes()
        assert made["weights"].tobytes() == expected["weights"].tobytes()
    assert np.array_equal(expected["indices"], recorded(phase, "ffn_moe_topk", layer)[:, :3])
    assert np.abs(expected["weights"] - recorded(phase, "ffn_moe_weights_norm", layer)).max() < 1e-6


@pytest.mark.parametrize("map_id", [ROUTED, BUCKETED])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("phase", PHASES)
def test_routed_experts(phase: str, layer: int, map_id: str) -> None:
    made = same_bytes(Subject(map_id, DIMS), routed_inputs(phase, layer))
    assert_faithful(made, recorded(phase, "ffn_moe_out", layer), phase)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("phase", PHASES)
def test_shared_expert(phase: str, layer: int) -> None:
    """Gated alone; plain (a zero gate vector halves it: sigmoid(0) = 0.5); and with the routed add."""
    subject = Subject(SHARED, {"H": 256, "I": 256})
    gated = same_bytes(subject, shared_inputs(phase, layer))
    assert_faithful(gated, recorded(phase, "ffn_shexp_gated", layer), phase)
    plain = same_bytes(subject, shared_inputs(phase, layer, gate=np.zeros(256, np.float32)))
    assert_faithful(2 * plain, recorded(phase, "ffn_shexp", layer), phase)
    whole = same_bytes(subject, shared_inputs(phase, layer, routed=recorded(phase, "ffn_moe_out", layer)))
    assert_faithful(whole, recorded(phase, "ffn_out", layer), phase)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_float_path_without_activation_quantization_fails(layer: int) -> None:
    """The same block with dequantized weights and unquantized activations is an order of magnitude off the bound."""
    given = routed_inputs("prefill", layer)
    kinds = {"expert_gate": "Q4_K", "expert_up": "Q4_K", "expert_down": "Q5_K"}
    floats = {
        port: gguf.quants.dequantize(given[port], gguf.GGMLQuantizationType[kind]).astype(np.float64)
        for port, kind in kinds.items()
    }
    out = np.zeros(given["hidden"].shape)
    for row, x in enumerate(given["hidden"].astype(np.float64)):
        for expert, factor in zip(given["indices"][row], given["routing_weights"][row], strict=True):
            gate, up = floats["expert_gate"][expert] @ x, floats["expert_up"][expert] @ x
            out[row] += factor * (floats["expert_down"][expert] @ (gate / (1 + np.exp(-gate)) * up))
    tensor, median = relative_rms(out, recorded("prefill", "ffn_moe_out", layer))
    assert tensor > 2e-3
    assert median > 2e-3
