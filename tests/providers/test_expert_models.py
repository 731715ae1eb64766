"""Expert blocks on the tensors of small models, against what llama.cpp recorded for the same inputs.

Each ``tests/data/models/NAME.moe.npz`` holds one layer's expert tensors as stored and the recorded input, routing and
outputs of its block (24 tokens of prefill, one of decode; ``f32w/`` is the same model with weights widened to fp32).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from calling import DATA, Subject, registry

from kernelmap_providers import formats
from kernelmap_providers.reference.activations import quantized
from kernelmap_providers.reference.dots import dot

Array = np.ndarray[Any, Any]
MODELS = ("laguna", "laguna_elem", "qwen3moe", "glm4moe", "deepseek2", "gpt-oss", "nemotron_h_moe", "kimi-k3")
SITU = {"beta": 4.0, "linear_beta": 25.0}
CLAMPED = {"alpha": 1.702, "limit": 7.0}
FUNCTIONS = {"gpt-oss": "clamped", "nemotron_h_moe": "relu_squared", "kimi-k3": "situ"}
PARAMS: dict[str, dict[str, float]] = {"clamped": CLAMPED, "situ": SITU}
ROUTED_OPS = ("moe_swiglu_expert_mlp", "moe_relu_squared_expert_mlp")
SHARED_OPS = ("shared_swiglu_expert_mlp", "shared_relu_squared_expert_mlp")


@dataclass(frozen=True)
class Model:
    """One layer's expert block."""

    name: str
    layer: str
    data: Mapping[str, Array]
    formats: Mapping[str, str]

    @property
    def function(self) -> str:
        return FUNCTIONS.get(self.name, "ggml")

    def weight(self, name: str) -> Array:
        return self.data[f"weight/{self.layer}/{name}"]

    def format(self, name: str) -> str:
        return self.formats[f"{self.layer}/{name}"]

    def has(self, name: str) -> bool:
        return f"weight/{self.layer}/{name}" in self.data

    def recorded(self, phase: str, role: str) -> Array:
        return self.data[f"{phase}/{self.layer}/{role}"]

    def ports(self, kind: str) -> dict[str, str]:
        """Weight port to tensor name; ``kind`` is ``exps`` or ``shexp``."""
        prefix = "expert" if kind == "exps" else "shared"
        names = {f"{prefix}_{role}": f"ffn_{role}_{kind}.weight" for role in ("gate", "up", "down")}
        return {port: name for port, name in names.items() if self.has(name)}

    def biases(self) -> dict[str, Array]:
        names = {f"{role}_bias": f"ffn_{role}_exps.bias" for role in ("gate", "up", "down")}
        return {port: self.weight(name) for port, name in names.items() if self.has(name)}

    def hidden(self, phase: str) -> Array:
        """What the routed experts read: the recorded row, through Kimi's projection to the latent width."""
        x = self.recorded(phase, "hidden")
        if not self.has("ffn_routed_down.weight"):
            return x
        down, storage = self.weight("ffn_routed_down.weight"), self.format("ffn_routed_down.weight")
        if phase.startswith("f32w"):
            down, storage = formats.decode(storage, down), "fp32"
        return np.stack([dot(storage, down, quantized(storage, row, 0, "x")) for row in x])


@cache
def model(name: str) -> Model:
    loaded = np.load(DATA / "models" / f"{name}.moe.npz")
    data = {key: loaded[key] for key in loaded.files}
    kinds = json.loads(str(data.pop("formats")))
    return Model(name, next(iter(kinds)).partition("/")[0], data, kinds)


def providers(ops: tuple[str, ...], function: str, types: Mapping[str, str]) -> list[str]:
    """Ids of all providers of the contract with this activation and these formats: exactly one group."""
    groups = [
        contract.equivalence_group
        for contract in registry().contracts.values()
        if contract.op in ops
        and contract.arithmetic["swiglu"] == function
        and "gate_input" not in contract.ports
        and all(contract.ports[port].dtype == storage for port, storage in types.items() if port in contract.ports)
        and set(types) <= set(contract.ports)
    ]
    assert len(groups) == 1, groups
    return [item.id for item in registry().ladders[groups[0]]]


def outputs(ids: list[str], dims: dict[str, int], params: dict[str, float], arrays: Mapping[str, Array]) -> Array:
    """The providers' output, the same bytes from each, their variants and thread counts, and the oracle."""
    made: Array | None = None
    for map_id in ids:
        subject = Subject(map_id, dims, params)
        if made is None:
            made = subject.oracle(**arrays)["output"]
        for variant in subject.variants:
            for threads in (1, 3):
                status, found = subject.call(arrays, variant, threads)
                assert status == 0
                assert found["output"].tobytes() == made.tobytes(), (map_id, variant, threads)
    assert made is not None
    return made


def relative_rms(made: Array, reference: Array) -> float:
    error = made.astype(np.float64) - reference
    return float(np.sqrt((error**2).mean() / (reference.astype(np.float64) ** 2).mean()))


def routed_arrays(m: Model, phase: str, weights: Mapping[str, Array]) -> dict[str, Array]:
    return {
        "hidden": m.hidden(phase),
        "indices": np.ascontiguousarray(m.recorded(phase, "topk")),
        "routing_weights": m.recorded(phase, "weights"),
        **weights,
        **m.biases(),
    }


def dims_of(arrays: Mapping[str, Array], width: int) -> dict[str, int]:
    dims = {"H": arrays["hidden"].shape[1], "I": width}
    if "indices" in arrays:
        dims |= {"K": arrays["indices"].shape[1], "E": len(arrays["expert_up"])}
    return dims


@pytest.mark.parametrize("phase", ["prefill", "decode1"])
@pytest.mark.parametrize("name", MODELS)
def test_routed_experts(name: str, phase: str) -> None:
    m = model(name)
    ports = m.ports("exps")
    types = {port: m.format(tensor) for port, tensor in ports.items()}
    arrays = routed_arrays(m, phase, {port: m.weight(tensor) for port, tensor in ports.items()})
    ids = providers(ROUTED_OPS, m.function, types)
    dims = dims_of(arrays, m.weight(ports["expert_up"]).shape[1])
    made = outputs(ids, dims, PARAMS.get(m.function, {}), arrays)
    assert relative_rms(made, m.recorded(phase, "out")) < 1e-3


@pytest.mark.parametrize("phase", ["prefill", "decode1"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("qwen3moe", "gpt-oss")])
def test_shared_experts(name: str, phase: str) -> None:
    m = model(name)
    ports = m.ports("shexp")
    types = {port: m.format(tensor) for port, tensor in ports.items()}
    arrays = {"hidden": m.recorded(phase, "hidden")} | {port: m.weight(tensor) for port, tensor in ports.items()}
    ids = providers(SHARED_OPS, m.function, types)
    made = outputs(ids, dims_of(arrays, len(arrays["shared_up"])), PARAMS.get(m.function, {}), arrays)
    assert relative_rms(made, m.recorded(phase, "shared")) < 1e-3


@pytest.mark.parametrize(
    "name", [name for name in MODELS if "f32w/prefill/1/hidden" in model(name).data or name == "laguna_elem"]
)
def test_fp32_weights_prove_the_semantics(name: str) -> None:
    """The tight comparison: the same block with widened weights, no quantization anywhere."""
    m, phase = model(name), "f32w/prefill"
    ports = m.ports("exps")
    widened = {port: formats.decode(m.format(tensor), m.weight(tensor)) for port, tensor in ports.items()}
    arrays = routed_arrays(m, phase, widened)
    ids = providers(ROUTED_OPS, m.function, dict.fromkeys(ports, "fp32"))
    dims = dims_of(arrays, widened["expert_up"].shape[1])
    made = outputs(ids, dims, PARAMS.get(m.function, {}), arrays)
    assert relative_rms(made, m.recorded(phase, "out")) < 1e-5


@pytest.mark.parametrize("name", ["laguna", "gpt-oss"])
def test_a_float_path_without_activation_quantization_is_noticed(name: str) -> None:
    """The bound of 1e-3 tells the quantized contract from the fp32 one on the same recorded input."""
    m = model(name)
    ports = m.ports("exps")
    widened = {port: formats.decode(m.format(tensor), m.weight(tensor)) for port, tensor in ports.items()}
    arrays = routed_arrays(m, "prefill", widened)
    ids = providers(ROUTED_OPS, m.function, dict.fromkeys(ports, "fp32"))
    dims = dims_of(arrays, widened["expert_up"].shape[1])
    made = outputs(ids, dims, PARAMS.get(m.function, {}), arrays)
    assert relative_rms(made, m.recorded("prefill", "out")) > 2e-3
