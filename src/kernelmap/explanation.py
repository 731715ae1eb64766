"""Answers to "why": the decisions of one op, with flips, whether or not the circuit resolves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelmap.checks import Question
from kernelmap.circuit.elaborate import elaborate
from kernelmap.circuit.loading import CircuitFile
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.explain import Flip, flip_across, flip_of
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.plan import Decision
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry
from kernelmap.resolver import Resolution, decide, rules_of
from kernelmap.vocabulary import Phase


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with the smallest flip of each provider that was not selected."""

    decision: Decision
    flips: Mapping[str, Flip]


def explain(
    circuit: CircuitFile,
    inventory: Inventory,
    registry: Registry,
    host: Host,
    policy: Policy,
    op: str,
    *,
    phase: Phase | None = None,
    layer: int | None = None,
    why_not: str | None = None,
) -> tuple[list[Explanation], Resolution]:
    """The decisions of an op (in one phase, one layer, about one provider, or all).

    Raises KernelmapError for an op, layer or provider that does not exist, or if the circuit cannot be elaborated.
    """
    policy = policy.normalised()
    elaborated = elaborate(circuit.circuit, circuit.source, inventory, registry.contracts, policy.options)
    resolution = decide(elaborated, circuit.source, registry, host, policy)
    _check_names(resolution, registry, op, why_not)
    _check_group(resolution, registry, host, policy, op, why_not)
    rules = rules_of(elaborated.circuit, policy)
    features = frozenset(host.isa)
    found: list[Explanation] = []
    for case, decision in zip(resolution.cases, resolution.decisions, strict=True):
        if decision.name != op or (phase is not None and decision.phase is not phase):
            continue
        if layer is not None and layer not in decision.layers:
            continue
        question = Question(case.shared, case.phase, host, features, rules, registry.evidence)
        flips: dict[str, Flip] = {}
        for item in decision.candidates:
            if not item.selected and (why_not is None or item.id == why_not):
                flips[item.id] = flip_of(item.id, resolution.cases, registry, question)
        found.append(Explanation(decision, flips))
    if not found:
        where = f"{op}{f' in layer {layer}' if layer is not None else ''}{f' in {phase.value}' if phase else ''}"
        raise KernelmapError(Diagnostic("KM458", f"the circuit has no {where}"))
    return found, resolution


def _check_names(resolution: Resolution, registry: Registry, op: str, why_not: str | None) -> None:
    names = {decision.name for decision in resolution.decisions}
    if op not in names:
        help = f"ops: {', '.join(sorted(names))}"
        raise KernelmapError(Diagnostic("KM458", f"the circuit has no op {op!r}", near=nearest(op, names), help=help))
    if why_not is None:
        return
    if why_not not in registry.maps:
        raise KernelmapError(
            Diagnostic("KM457", f"no provider is called {why_not!r}", near=nearest(why_not, registry.maps))
        )


def _check_group(
    resolution: Resolution, registry: Registry, host: Host, policy: Policy, op: str, why_not: str | None
) -> None:
    """Refuses a provider of a group that the op does not ask for, with what would make it ask for it."""
    if why_not is None:
        return
    groups = {decision.group for decision in resolution.decisions if decision.name == op}
    item = registry.maps[why_not]
    if item.selection.equivalence_group in groups:
        return
    circuit = resolution.elaborated.circuit
    rules = rules_of(circuit, policy)
    options = {
        name: (value, *(other for other in circuit.options[name].choices if other != value))
        for name, value in resolution.elaborated.options.items()
    }
    lines = [f"{op} asks for {' or '.join(sorted(groups))}; another group is never looked at"]
    for case in resolution.cases:
        if case.shared.op.name == op:
            question = Question(case.shared, case.phase, host, frozenset(host.isa), rules, registry.evidence)
            flip = flip_across(why_not, resolution.cases, registry, question, options)
            if flip.changes:
                lines.append(f"{case.phase.value}: {flip.text}")
    if len(lines) == 1:
        lines.append("other storage formats or options would not make it ask for that group")
    message = f"{why_not} belongs to another group: {item.selection.equivalence_group}"
    raise KernelmapError(Diagnostic("KM459", message, help="\n".join(dict.fromkeys(lines))))
