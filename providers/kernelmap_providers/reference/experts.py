"""Oracles of the SwiGLU expert blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.reference.activations import quantized
from kernelmap_providers.reference.dots import dot
from kernelmap_providers.reference.elementary import Floats, dot_lanes, sigmoid, swiglu
from kernelmap_providers.reference.refusal import RefusedRow, demand_finite

Array = np.ndarray[Any, Any]


def moe_swiglu_expert_mlp(
    spec: BuildSpec, hidden: Floats, indices: Array, routing_weights: Floats, expert_gate: Array, expert_up: Array,
    expert_down: Array,
) -> dict[str, Array]:  # fmt: skip
    """output ``[R, H]``: for slot j in order, ``output = output + routing_weights[j] * down(swiglu(gate x, up x))``.

    hidden ``[R, H]``, indices and routing_weights ``[R, K]``, gate and up ``[E, I, H]``, down ``[E, H, I]`` in their
    storage formats. Raises RefusedRow, also for an index outside [0, E).
    """
    formats = spec.dtypes["expert_gate"], spec.dtypes["expert_up"], spec.dtypes["expert_down"]
    output = np.zeros_like(hidden)
    for row, x in enumerate(hidden):
        demand_finite(row, x, "hidden")
        demand_finite(row, routing_weights[row], "routing_weights")
        if (indices[row] < 0).any() or (indices[row] >= len(expert_gate)).any():
            raise RefusedRow(row, "an expert index is out of range")
        for expert, weight in zip(indices[row], routing_weights[row], strict=True):
            y = _mlp(formats, x, expert_gate[expert], expert_up[expert], expert_down[expert], row)
            with np.errstate(over="ignore", invalid="ignore"):
                output[row] = output[row] + weight * y
    return {"output": output}


def shared_swiglu_gated_then_routed_add(
    spec: BuildSpec, hidden: Floats, routed: Floats, shared_gate: Array, shared_up: Array, shared_down: Array,
    gate_input: Floats,
) -> dict[str, Array]:  # fmt: skip
    """output ``[R, H]`` = sigmoid(hidden . gate_input) * down(swiglu(gate x, up x)), rounded, then + routed.

    hidden and routed ``[R, H]``, gate and up ``[I, H]``, down ``[H, I]`` in their storage formats, gate_input ``[H]``.
    Raises RefusedRow.
    """
    formats = spec.dtypes["shared_gate"], spec.dtypes["shared_up"], spec.dtypes["shared_down"]
    output = np.zeros_like(hidden)
    for row, x in enumerate(hidden):
        demand_finite(row, x, "hidden")
        demand_finite(row, routed[row], "routed")
        y = _mlp(formats, x, shared_gate, shared_up, shared_down, row)
        gate = sigmoid(dot_lanes(gate_input[None], x))
        with np.errstate(over="ignore", invalid="ignore"):
            gated = gate * y
            output[row] = gated + routed[row]
    return {"output": output}


def _mlp(formats: tuple[str, str, str], x: Floats, gate: Array, up: Array, down: Array, row: int) -> Floats:
    gated = dot(formats[0], gate, quantized(formats[0], x, row, "hidden"))
    lifted = dot(formats[1], up, quantized(formats[1], x, row, "hidden"))
    h = swiglu(gated, lifted)
    return dot(formats[2], down, quantized(formats[2], h, row, "the intermediate"))
