"""Oracles of the expert blocks: routed and shared, with each activation function a contract of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.reference.activations import quantized
from kernelmap_providers.reference.dots import dot
from kernelmap_providers.reference.elementary import F32, Floats, dot_lanes, sigmoid, swiglu, tanh32
from kernelmap_providers.reference.refusal import RefusedRow, demand_finite

Array = np.ndarray[Any, Any]
Mlp = Callable[[int, Floats, int], Floats]
"""(row, hidden row, expert) to the expert's output row."""


def moe_swiglu_expert_mlp(
    spec: BuildSpec, hidden: Floats, indices: Array, routing_weights: Floats, expert_gate: Array, expert_up: Array,
    expert_down: Array,
) -> dict[str, Array]:  # fmt: skip
    """output ``[R, H]``: for slot j in order, ``output = output + routing_weights[j] * down(swiglu(gate x, up x))``.

    hidden ``[R, H]``, indices and routing_weights ``[R, K]``, gate and up ``[E, I, H]``, down ``[E, H, I]`` in their
    storage formats. Raises RefusedRow, also for an index outside [0, E).
    """

    def mlp(row: int, x: Floats, expert: int) -> Floats:
        gated = _dots(spec, "expert_gate", expert_gate[expert], x, row)
        lifted = _dots(spec, "expert_up", expert_up[expert], x, row)
        return _dots(spec, "expert_down", expert_down[expert], swiglu(gated, lifted), row, "the intermediate")

    return _routed(hidden, indices, routing_weights, len(expert_gate), mlp)


def moe_clamped_swiglu_biased(
    spec: BuildSpec, hidden: Floats, indices: Array, routing_weights: Floats, expert_gate: Array, expert_up: Array,
    expert_down: Array, gate_bias: Floats, up_bias: Floats, down_bias: Floats,
) -> dict[str, Array]:  # fmt: skip
    """As `moe_swiglu_expert_mlp` with biases after the three dots and gpt-oss's activation (`clamped_swiglu`).

    gate_bias and up_bias ``[E, I]``, down_bias ``[E, H]``. Source: gpt-oss model card; llama.cpp, ggml_swiglu_oai.
    """
    alpha, limit = F32(spec.params["alpha"]), F32(spec.params["limit"])

    def mlp(row: int, x: Floats, expert: int) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            gated = _dots(spec, "expert_gate", expert_gate[expert], x, row) + gate_bias[expert]
            lifted = _dots(spec, "expert_up", expert_up[expert], x, row) + up_bias[expert]
            h = clamped_swiglu(gated, lifted, alpha, limit)
            y = _dots(spec, "expert_down", expert_down[expert], h, row, "the intermediate")
            biased: Floats = y + down_bias[expert]
        return biased

    return _routed(hidden, indices, routing_weights, len(expert_gate), mlp)


def moe_situ_expert_mlp(
    spec: BuildSpec, hidden: Floats, indices: Array, routing_weights: Floats, expert_gate: Array, expert_up: Array,
    expert_down: Array,
) -> dict[str, Array]:  # fmt: skip
    """As `moe_swiglu_expert_mlp` with `situ_glu` (Kimi K3)."""
    beta, linear_beta = F32(spec.params["beta"]), F32(spec.params["linear_beta"])

    def mlp(row: int, x: Floats, expert: int) -> Floats:
        gated = _dots(spec, "expert_gate", expert_gate[expert], x, row)
        lifted = _dots(spec, "expert_up", expert_up[expert], x, row)
        h = situ_glu(gated, lifted, beta, linear_beta)
        return _dots(spec, "expert_down", expert_down[expert], h, row, "the intermediate")

    return _routed(hidden, indices, routing_weights, len(expert_gate), mlp)


def moe_relu_squared_expert_mlp(
    spec: BuildSpec, hidden: Floats, indices: Array, routing_weights: Floats, expert_up: Array, expert_down: Array
) -> dict[str, Array]:
    """As `moe_swiglu_expert_mlp` without a gate: ``down(max(up x, 0) ** 2)`` (Nemotron-H)."""

    def mlp(row: int, x: Floats, expert: int) -> Floats:
        h = relu_squared(_dots(spec, "expert_up", expert_up[expert], x, row))
        return _dots(spec, "expert_down", expert_down[expert], h, row, "the intermediate")

    return _routed(hidden, indices, routing_weights, len(expert_up), mlp)


def shared_swiglu(
    spec: BuildSpec, hidden: Floats, shared_gate: Array, shared_up: Array, shared_down: Array
) -> dict[str, Array]:
    """output ``[R, H]`` = down(swiglu(gate x, up x)); gate and up ``[I, H]``, down ``[H, I]`` in their storage formats.

    Raises RefusedRow.
    """
    return _every_row(hidden, lambda row, x: _shared(spec, row, x, shared_gate, shared_up, shared_down, swiglu))


def shared_situ(
    spec: BuildSpec, hidden: Floats, shared_gate: Array, shared_up: Array, shared_down: Array
) -> dict[str, Array]:
    """As `shared_swiglu` with `situ_glu` (Kimi K3)."""
    beta, linear_beta = F32(spec.params["beta"]), F32(spec.params["linear_beta"])

    def function(gate: Floats, up: Floats) -> Floats:
        return situ_glu(gate, up, beta, linear_beta)

    return _every_row(hidden, lambda row, x: _shared(spec, row, x, shared_gate, shared_up, shared_down, function))


def shared_relu_squared(spec: BuildSpec, hidden: Floats, shared_up: Array, shared_down: Array) -> dict[str, Array]:
    """output ``[R, H]`` = down(max(up x, 0) ** 2) (Nemotron-H). Raises RefusedRow."""

    def mlp(row: int, x: Floats) -> Floats:
        h = relu_squared(_dots(spec, "shared_up", shared_up, x, row))
        return _dots(spec, "shared_down", shared_down, h, row, "the intermediate")

    return _every_row(hidden, mlp)


def shared_swiglu_gated_then_routed_add(
    spec: BuildSpec, hidden: Floats, routed: Floats, shared_gate: Array, shared_up: Array, shared_down: Array,
    gate_input: Floats,
) -> dict[str, Array]:  # fmt: skip
    """output ``[R, H]`` = sigmoid(hidden . gate_input) * down(swiglu(gate x, up x)), rounded, then + routed.

    hidden and routed ``[R, H]``, gate and up ``[I, H]``, down ``[H, I]`` in their storage formats, gate_input ``[H]``.
    Raises RefusedRow.
    """
    output = np.zeros_like(hidden)
    for row, x in enumerate(hidden):
        demand_finite(row, x, "hidden")
        demand_finite(row, routed[row], "routed")
        y = _shared(spec, row, x, shared_gate, shared_up, shared_down, swiglu)
        gate = sigmoid(dot_lanes(gate_input[None], x))
        with np.errstate(over="ignore", invalid="ignore"):
            gated = gate * y
            output[row] = gated + routed[row]
    return {"output": output}


def clamped_swiglu(gate: Floats, up: Floats, alpha: np.float32, limit: np.float32) -> Floats:
    """``(g * sigmoid(alpha g)) * (u + 1)`` with ``g = min(gate, limit)``, ``u`` = up within +-limit."""
    with np.errstate(over="ignore", invalid="ignore"):
        g: Any = np.minimum(gate, limit)
        u: Any = np.maximum(np.minimum(up, limit), -limit)
        h: Floats = (g * sigmoid(alpha * g)) * (u + F32(1))
        return h


def situ_glu(gate: Floats, up: Floats, beta: np.float32, linear_beta: np.float32) -> Floats:
    """``((beta tanh(gate / beta)) * sigmoid(gate)) * (linear_beta tanh(up / linear_beta))``."""
    with np.errstate(over="ignore", invalid="ignore"):
        h: Floats = ((beta * tanh32(gate / beta)) * sigmoid(gate)) * (linear_beta * tanh32(up / linear_beta))
        return h


def relu_squared(up: Floats) -> Floats:
    """``max(up, 0) ** 2``."""
    with np.errstate(over="ignore", invalid="ignore"):
        kept: Any = np.where(up < 0, F32(0), up)
        h: Floats = kept * kept
        return h


def _routed(hidden: Floats, indices: Array, routing_weights: Floats, experts: int, mlp: Mlp) -> dict[str, Array]:
    output = np.zeros_like(hidden)
    for row, x in enumerate(hidden):
        demand_finite(row, x, "hidden")
        demand_finite(row, routing_weights[row], "routing_weights")
        if (indices[row] < 0).any() or (indices[row] >= experts).any():
            raise RefusedRow(row, "an expert index is out of range")
        for expert, weight in zip(indices[row], routing_weights[row], strict=True):
            y = mlp(row, x, int(expert))
            with np.errstate(over="ignore", invalid="ignore"):
                output[row] = output[row] + weight * y
    return {"output": output}


def _every_row(hidden: Floats, mlp: Callable[[int, Floats], Floats]) -> dict[str, Array]:
    output = np.zeros_like(hidden)
    for row, x in enumerate(hidden):
        output[row] = mlp(row, x)
    return {"output": output}


def _shared(
    spec: BuildSpec, row: int, x: Floats, gate: Array, up: Array, down: Array, function: Callable[..., Floats]
) -> Floats:
    gated, lifted = _dots(spec, "shared_gate", gate, x, row), _dots(spec, "shared_up", up, x, row)
    return _dots(spec, "shared_down", down, function(gated, lifted), row, "the intermediate")


def _dots(spec: BuildSpec, port: str, weight: Array, x: Floats, row: int, name: str = "hidden") -> Floats:
    storage = spec.dtypes[port]
    return dot(storage, weight, quantized(storage, x, row, name))
