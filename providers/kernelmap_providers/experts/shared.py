"""Shared expert blocks: builders. One expert that every token meets, on the schedules of the routed ones."""

from __future__ import annotations

from kernelmap.spec import BuildSpec
from kernelmap_providers.arguments import Array
from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.call import Block
from kernelmap_providers.experts.routed import SCHEDULE_OF, Run, Weight, workers

SHARED = {"gate": "shared_gate", "up": "shared_up", "down": "shared_down"}


def swiglu(spec: BuildSpec) -> Run:
    """Builds ``down(f(gate x, up x))``, always on. On a nonzero status the output is all NaN.

    Raises ValueError for a format that no leg reads.
    """
    block = Block(spec, SHARED, SCHEDULE_OF[spec.variant], at.PLAIN)

    def run(
        hidden: Array, shared_gate: Weight, shared_up: Weight, shared_down: Weight, output: Array, workspace: Array,
        threads: int,
    ) -> int:  # fmt: skip
        weights = {"gate": shared_gate, "up": shared_up, "down": shared_down}
        return block.run(hidden, output, weights, workspace, workers(spec, threads), {})

    return run


def ungated(spec: BuildSpec) -> Run:
    """As `swiglu`, without a gate matrix: ``down(f(up x))`` (Nemotron-H)."""
    block = Block(spec, {"up": "shared_up", "down": "shared_down"}, SCHEDULE_OF[spec.variant], at.PLAIN)

    def run(
        hidden: Array, shared_up: Weight, shared_down: Weight, output: Array, workspace: Array, threads: int
    ) -> int:
        weights = {"up": shared_up, "down": shared_down}
        return block.run(hidden, output, weights, workspace, workers(spec, threads), {})

    return run


def sigmoid_gated_then_routed_add(spec: BuildSpec) -> Run:
    """As `swiglu`, times a scalar sigmoid gate a token, rounded, then added to the routed output."""
    block = Block(spec, SHARED, SCHEDULE_OF[spec.variant], at.GATED)

    def run(
        hidden: Array, routed: Array, shared_gate: Weight, shared_up: Weight, shared_down: Weight, gate_input: Array,
        output: Array, workspace: Array, threads: int,
    ) -> int:  # fmt: skip
        weights = {"gate": shared_gate, "up": shared_up, "down": shared_down}
        ports = {at.ROUTED: routed, at.GATE_INPUT: gate_input}
        return block.run(hidden, output, weights, workspace, workers(spec, threads), ports)

    return run
