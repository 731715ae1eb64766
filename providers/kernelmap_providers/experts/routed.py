"""Routed expert blocks: builders. The contract's formats choose the legs, the variant chooses the schedule."""

from __future__ import annotations

from collections.abc import Callable

from kernelmap.spec import BuildSpec
from kernelmap_providers.arguments import Array
from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.call import Block
from kernelmap_providers.packed.weight import PackedWeight

Run = Callable[..., int]
Weight = Array | PackedWeight
ROUTED = {"gate": "expert_gate", "up": "expert_up", "down": "expert_down"}
SCHEDULE_OF = {
    "serial": "tokens",
    "parallel_experts": "bucketed",
    "parallel_workspace": "bucketed",
    "parallel_bucketed": "bucketed",
}
"""Schedule by the variant's name: experts in parallel in decode, rows in prefill, or packed weights whatever the rows.

A schedule of its own for one token (threads meet after every part of it) was slower on one thread and on two.
"""


def workers(spec: BuildSpec, threads: int) -> int:
    """Threads that a variant uses."""
    return 1 if spec.variant == "serial" else threads


def swiglu(spec: BuildSpec) -> Run:
    """Builds a routed SwiGLU block for any formats, stored or prepared. On a nonzero status the output is all NaN.

    Raises ValueError for a format that no leg reads; ``run`` raises TypeError for a weight in another layout.
    """
    return _swiglu(spec, Block(spec, ROUTED, SCHEDULE_OF[spec.variant]))


def swiglu_naive(spec: BuildSpec) -> Run:
    """As `swiglu`, with the hidden row quantized anew for every (token, expert) pair: the contrast in measurements."""
    return _swiglu(spec, Block(spec, ROUTED, SCHEDULE_OF[spec.variant], requantize=True))


def _swiglu(spec: BuildSpec, block: Block) -> Run:
    def run(
        hidden: Array, indices: Array, routing_weights: Array, expert_gate: Weight, expert_up: Weight,
        expert_down: Weight, output: Array, workspace: Array, threads: int,
    ) -> int:  # fmt: skip
        weights = {"gate": expert_gate, "up": expert_up, "down": expert_down}
        ports = {at.INDICES: indices, at.ROUTING: routing_weights}
        return block.run(hidden, output, weights, workspace, workers(spec, threads), ports)

    return run


def biased_swiglu(spec: BuildSpec) -> Run:
    """As `swiglu`, with fp32 biases of gate, up and down (gpt-oss)."""
    block = Block(spec, ROUTED, SCHEDULE_OF[spec.variant])

    def run(
        hidden: Array, indices: Array, routing_weights: Array, expert_gate: Weight, expert_up: Weight,
        expert_down: Weight, gate_bias: Array, up_bias: Array, down_bias: Array, output: Array, workspace: Array,
        threads: int,
    ) -> int:  # fmt: skip
        weights = {"gate": expert_gate, "up": expert_up, "down": expert_down}
        ports = {
            at.INDICES: indices, at.ROUTING: routing_weights, at.GATE_BIAS: gate_bias, at.UP_BIAS: up_bias,
            at.DOWN_BIAS: down_bias,
        }  # fmt: skip
        return block.run(hidden, output, weights, workspace, workers(spec, threads), ports)

    return run


def ungated(spec: BuildSpec) -> Run:
    """As `swiglu`, without a gate: ``down(f(up x))`` (Nemotron-H)."""
    block = Block(spec, {"up": "expert_up", "down": "expert_down"}, SCHEDULE_OF[spec.variant])

    def run(
        hidden: Array, indices: Array, routing_weights: Array, expert_up: Weight, expert_down: Weight, output: Array,
        workspace: Array, threads: int,
    ) -> int:  # fmt: skip
        ports = {at.INDICES: indices, at.ROUTING: routing_weights}
        weights = {"up": expert_up, "down": expert_down}
        return block.run(hidden, output, weights, workspace, workers(spec, threads), ports)

    return run
