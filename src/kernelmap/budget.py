"""Weight-preparation budgets: all or none over every layer that a map would serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelmap.circuit.instances import OpInstance, SharedOp
from kernelmap.expressions import ExpressionError
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.plan import Reason


@dataclass(frozen=True, slots=True)
class Served:
    """An op that a map would serve, with all its layers."""

    shared: SharedOp
    instances: Sequence[OpInstance]


def prepared_bytes(item: KernelMap, dims: Mapping[str, int]) -> dict[str, tuple[str, int]]:
    """Weight port to (prepared format, bytes of one tensor). Raises ExpressionError if a size cannot be computed."""
    return {
        port: (hook.prepared_format, hook.prepared_bytes.evaluate(dims))
        for hook in item.weight_preparation
        for port in hook.weights
    }


def budget_reason(item: KernelMap, served: Sequence[Served]) -> Reason | None:
    """Why the map's preparations do not fit their budgets, counting each tensor once."""
    for hook in item.weight_preparation:
        total = 0
        seen: set[tuple[str, tuple[int, int] | None]] = set()
        for entry in served:
            try:
                size = hook.prepared_bytes.evaluate(entry.shared.dims)
            except ExpressionError as error:
                message = f"size of {hook.prepared_format}: {error.message}"
                return Reason(code="KM408", check="budget", message=message, facts={"format": hook.prepared_format})
            for instance in entry.instances:
                for port in hook.weights:
                    weight = instance.weights.get(port)
                    if weight is not None and (weight.tensor.name, weight.rows) not in seen:
                        seen.add((weight.tensor.name, weight.rows))
                        total += size
        if total > hook.max_total_bytes:
            message = f"{hook.prepared_format} takes {total:,} bytes, over its budget of {hook.max_total_bytes:,}"
            facts = {"format": hook.prepared_format, "bytes": total, "budget": hook.max_total_bytes}
            return Reason(code="KM408", check="budget", message=message, facts=facts)
    return None
