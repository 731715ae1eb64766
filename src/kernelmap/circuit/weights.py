"""Weight bindings of an op: patterns, row views, alternatives, optional tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelmap.circuit.facts import Facts
from kernelmap.circuit.instances import BoundWeight
from kernelmap.errors import nearest
from kernelmap.models.circuit import WeightBinding, WeightView


@dataclass(slots=True)
class WeightBinder:
    """Finds tensors in the inventory, remembers which were read, and reports each missing pattern once."""

    facts: Facts
    read: set[str] = field(default_factory=set)
    _missing: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """(JSON pointer, patterns) to the tensor names that were looked for in vain."""

    def bind(self, binding: WeightBinding, layer: int | None, where: str) -> BoundWeight | None:
        """The tensor of a binding in one layer; None if it is absent (reported unless the binding is optional)."""
        if isinstance(binding, str):
            patterns: tuple[str | WeightView, ...] = (binding,)
            optional = False
        elif isinstance(binding, WeightView):
            patterns, optional = (binding,), binding.optional
        else:
            patterns, optional = binding.any_of, binding.optional
        for pattern in patterns:
            view = pattern if isinstance(pattern, WeightView) else None
            text = view.tensor if view is not None else str(pattern)
            tensor = self.facts.tensors.get(tensor_name(text, layer))
            if tensor is not None:
                self.read.add(tensor.name)
                if view is None or view.rows is None:
                    return BoundWeight(tensor, text)
                return self._view(BoundWeight(tensor, text), view, layer, where)
        if not optional:
            names = [tensor_name(p.tensor if isinstance(p, WeightView) else p, layer) for p in patterns]
            self._missing.setdefault((where, " or ".join(_text(p) for p in patterns)), []).extend(names)
        return None

    def _view(self, weight: BoundWeight, view: WeightView, layer: int | None, where: str) -> BoundWeight | None:
        assert view.rows is not None
        env = self.facts.env(layer)
        start = self.facts.scalar(view.rows[0], env, f"{where}/rows/0")
        stop = self.facts.scalar(view.rows[1], env, f"{where}/rows/1")
        if start is None or stop is None:
            return None
        shape = weight.tensor.shape
        rows = shape[-2] if len(shape) > 1 else 0
        if not start < stop <= rows:
            name = weight.tensor.name
            self.facts.report("KM308", f"rows [{start}, {stop}) are not in {name}, which has {rows}", f"{where}/rows")
            return None
        return BoundWeight(weight.tensor, weight.pattern, (start, stop))

    def report_missing(self) -> None:
        """One error for each binding that found nothing in some layers."""
        for (where, pattern), names in self._missing.items():
            near = nearest(names[0], self.facts.tensors)
            more = f" (and {len(names) - 1} more layers)" if len(names) > 1 and "{layer}" in pattern else ""
            self.facts.report("KM308", f"the model has no tensor {names[0]}{more}", where, near=near)


def tensor_name(pattern: str, layer: int | None) -> str:
    """The pattern with ``{layer}`` filled in."""
    return pattern if layer is None else pattern.replace("{layer}", str(layer))


def _text(pattern: str | WeightView) -> str:
    return pattern.tensor if isinstance(pattern, WeightView) else pattern
