"""The fail-closed resolver: binds each op to the highest eligible provider of its group, or refuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernelmap.budget import Served, budget_reason, prepared_bytes
from kernelmap.checks import Question, Rules, evidence_gap, reasons
from kernelmap.circuit.elaborate import elaborate
from kernelmap.circuit.instances import BoundWeight, Elaborated, OpInstance, SharedOp
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.jsonsource import JsonSource
from kernelmap.models.circuit import Circuit
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.kernel_map import KernelMap, Variant
from kernelmap.models.plan import Candidate, Decision, HostFacts, Plan, PlanVariant, PlanWarning, Reason, WeightUse
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry
from kernelmap.residency import residency
from kernelmap.vocabulary import Phase

STEPS = (Phase.INIT, Phase.PREFILL, Phase.DECODE)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to decide: a shared op in a phase, with the instances that it decides for."""

    shared: SharedOp
    phase: Phase
    instances: tuple[OpInstance, ...]


@dataclass(slots=True)
class Resolution:
    """Every decision record, also of ops that could not be decided, and every problem."""

    elaborated: Elaborated
    cases: tuple[Case, ...]
    decisions: tuple[Decision, ...]
    problems: tuple[Diagnostic, ...]
    warnings: tuple[PlanWarning, ...]
    host: HostFacts


def resolve(
    circuit: Circuit,
    source: JsonSource,
    inventory: Inventory,
    registry: Registry,
    host: Host,
    policy: Policy | None = None,
) -> Plan:
    """The plan of all phases of a circuit for a model and a host.

    Raises KernelmapError with the problems of all ops at once: there is no partial plan. Pure: reads no file, no
    environment, and imports no kernel.
    """
    policy = (policy or Policy()).normalised()
    elaborated = elaborate(circuit, source, inventory, registry.contracts, policy.options)
    resolution = decide(elaborated, source, registry, host, policy)
    if resolution.problems:
        raise KernelmapError(resolution.problems)
    return make_plan(resolution, policy)


def make_plan(resolution: Resolution, policy: Policy) -> Plan:
    """The plan of a resolution without problems."""
    elaborated = resolution.elaborated
    resident, total = residency(elaborated, resolution.decisions)
    return Plan(
        circuit=elaborated.circuit.id,
        circuit_digest=elaborated.circuit.digest,
        inventory_digest=elaborated.inventory.digest,
        architecture=elaborated.inventory.architecture,
        options=dict(elaborated.options),
        policy=policy,
        host=resolution.host,
        phases=tuple(phase for phase in STEPS if any(item.phase is phase for item in resolution.decisions)),
        decisions=resolution.decisions,
        residency=resident,
        total_bytes=total,
        warnings=resolution.warnings,
    )


def cases_of(elaborated: Elaborated) -> tuple[Case, ...]:
    """Distinct (op, phase, group, static dims, params), in the order in which they first run."""
    grouped: dict[int, list[OpInstance]] = {}
    for instance in elaborated.instances:
        grouped.setdefault(id(instance.shared), []).append(instance)
    return tuple(
        Case(instances[0].shared, phase, tuple(instances))
        for phase in STEPS
        for instances in grouped.values()
        if phase in instances[0].shared.op.phases
    )


def rules_of(circuit: Circuit, policy: Policy) -> Rules:
    """The circuit's routes and the policy as the checks ask them."""
    steps = (Phase.PREFILL, Phase.DECODE)
    routes = {(route.op, phase, route.allow) for route in circuit.routes for phase in route.phases}
    routes |= {(r.op, phase, r.allow) for r in policy.routes for phase in ((r.phase,) if r.phase else steps)}
    pins = {(pin.op, phase): pin.id for pin in policy.pin for phase in ((pin.phase,) if pin.phase else STEPS)}
    return Rules(frozenset(routes), frozenset(policy.exclude), pins, policy.evidence, frozenset(policy.kill_switches))


def decide(elaborated: Elaborated, source: JsonSource, registry: Registry, host: Host, policy: Policy) -> Resolution:
    """Runs every check on every map of every group, then ranks. Returns problems instead of raising."""
    rules = rules_of(elaborated.circuit, policy)
    decider = _Decider(elaborated, source, registry, host, rules)
    return decider.run(policy)


@dataclass(slots=True)
class _Decider:
    elaborated: Elaborated
    source: JsonSource
    registry: Registry
    host: Host
    rules: Rules
    problems: list[Diagnostic] = field(default_factory=list)
    warnings: list[PlanWarning] = field(default_factory=list)

    def run(self, policy: Policy) -> Resolution:
        cases = cases_of(self.elaborated)
        features = frozenset(self.host.isa)
        found: list[list[tuple[KernelMap, list[Reason]]]] = []
        for case in cases:
            question = Question(case.shared, case.phase, self.host, features, self.rules, self.registry.evidence)
            ladder = self.registry.ladders.get(case.shared.group, ())
            found.append([(item, reasons(item, question)) for item in ladder])
        self._budgets(cases, found)
        decisions = tuple(self._decision(case, rows, features) for case, rows in zip(cases, found, strict=True))
        self._policy_names(policy, cases)
        self._warn(decisions, policy)
        return Resolution(
            self.elaborated, cases, decisions, tuple(self.problems), tuple(self.warnings), self._facts(cases, features)
        )

    def _budgets(self, cases: Sequence[Case], found: list[list[tuple[KernelMap, list[Reason]]]]) -> None:
        """Adds the budget's reason wherever a map would serve: all or none."""
        served: dict[str, list[tuple[Case, list[Reason]]]] = {}
        maps: dict[str, KernelMap] = {}
        for case, rows in zip(cases, found, strict=True):
            for item, why in rows:
                if item.weight_preparation and not why:
                    maps[item.id] = item
                    served.setdefault(item.id, []).append((case, why))
        for name, entries in served.items():
            reason = budget_reason(maps[name], [Served(case.shared, case.instances) for case, _ in entries])
            if reason is not None:
                for _, why in entries:
                    why.append(reason)

    def _decision(self, case: Case, rows: list[tuple[KernelMap, list[Reason]]], features: frozenset[str]) -> Decision:
        eligible = [item for item, why in rows if not why]
        chosen = self._chosen(case, eligible, rows)
        candidates = []
        for item, why in rows:
            if not why and chosen is not None and item is not chosen:
                facts = {"winner": chosen.id, "priority": chosen.selection.priority}
                why = [Reason(code="KM413", check="rank", message=f"outranked by {chosen.id}", facts=facts)]
            picked = item.selection
            candidates.append(
                Candidate(
                    id=item.id, status=picked.status, priority=picked.priority, phases=picked.phases,
                    selected=item is chosen, reasons=tuple(why),
                )
            )  # fmt: skip
        shared = case.shared
        return Decision(
            name=shared.op.name,
            op=shared.op.op,
            phase=case.phase,
            layers=tuple(i.layer for i in case.instances if i.layer is not None),
            where=shared.where,
            group=shared.group,
            contract_digest=shared.contract.digest,
            dims=shared.dims,
            params=shared.params,
            weights=_weight_uses(case, chosen),
            provider=chosen.id if chosen is not None else None,
            map_digest=chosen.digest if chosen is not None else "",
            variants=_variants(chosen, features, self.rules.kill_switches) if chosen is not None else (),
            candidates=tuple(candidates),
        )

    def _chosen(
        self, case: Case, eligible: Sequence[KernelMap], rows: Sequence[tuple[KernelMap, list[Reason]]]
    ) -> KernelMap | None:
        """Exactly one at the top is selected; a tie or a hole is reported and decides nothing."""
        label = f"{case.shared.op.name} ({case.phase.value}{_layers_text(case)})"
        place = self.source.place(case.shared.where)
        pinned = self.rules.pins.get((case.shared.op.name, case.phase))
        if not eligible:
            lines = [f"{item.id}: {'; '.join(f'{r.code} {r.message}' for r in why)}" for item, why in rows]
            help = "\n".join(lines) if lines else "the group has no provider at all"
            message = f"{label}: no provider of {case.shared.group} is eligible"
            if pinned is not None and all(item.id != pinned for item, _ in rows):
                message = f"{label}: pinned {pinned} is no provider of {case.shared.group}"
            code = "KM455" if pinned is not None else "KM450"
            self.problems.append(Diagnostic(code, message, place=place, help=help))
            return None
        top = eligible[0].selection.priority
        tied = [item for item in eligible if item.selection.priority == top]
        if len(tied) > 1:
            names = " and ".join(item.id for item in tied)
            self.problems.append(Diagnostic("KM452", f"{label}: {names} tie at priority {top}", place=place))
            return None
        return tied[0]

    def _policy_names(self, policy: Policy, cases: Sequence[Case]) -> None:
        """Names in routes, pins and exclusions that mean nothing are refused: a typo must not look obeyed."""
        ops = {case.shared.op.name for case in cases}
        maps = self.registry.maps
        named: Iterable[tuple[str, str]] = (
            *((r.op, r.allow) for r in policy.routes),
            *((p.op, p.id) for p in policy.pin),
        )
        for op, provider in named:
            if op not in ops:
                near = nearest(op, ops)
                self.problems.append(Diagnostic("KM456", f"policy names op {op!r}, which the circuit lacks", near=near))
            if provider not in maps:
                near = nearest(provider, maps)
                self.problems.append(Diagnostic("KM457", f"policy names unknown provider {provider!r}", near=near))
        for provider in policy.exclude:
            if provider not in maps:
                near = nearest(provider, maps)
                self.problems.append(Diagnostic("KM457", f"policy excludes unknown provider {provider!r}", near=near))

    def _warn(self, decisions: Sequence[Decision], policy: Policy) -> None:
        routed: dict[tuple[str, str], list[str]] = {}
        for decision in decisions:
            for candidate in decision.candidates:
                if (decision.name, decision.phase, candidate.id) in self.rules.routes and not candidate.eligible:
                    why = "; ".join(f"{r.code} {r.message}" for r in candidate.reasons)
                    routed.setdefault((candidate.id, why), []).append(f"{decision.name}:{decision.phase.value}")
        for (name, why), places in routed.items():
            where = ", ".join(dict.fromkeys(places))
            self.warnings.append(PlanWarning(code="KM460", message=f"routed {name} is not eligible for {where}: {why}"))
        known = kill_switches(self.registry)
        for switch in policy.kill_switches:
            if switch not in known:
                self.warnings.append(PlanWarning(code="KM462", message=f"no variant knows kill switch {switch}"))
        if policy.evidence == "warn":
            gaps: dict[str, list[str]] = {}
            for decision in decisions:
                if decision.provider is not None:
                    proof = self.registry.evidence.get(decision.provider)
                    gap = evidence_gap(self.registry.maps[decision.provider], decision.contract_digest, proof)
                    if gap and decision.provider not in gaps.setdefault(gap, []):
                        gaps[gap].append(decision.provider)
            for gap, names in gaps.items():
                self.warnings.append(PlanWarning(code="KM461", message=f"selected with {gap}: {', '.join(names)}"))

    def _facts(self, cases: Sequence[Case], features: frozenset[str]) -> HostFacts:
        asked: set[str] = set()
        for group in {case.shared.group for case in cases}:
            for item in self.registry.ladders.get(group, ()):
                asked.update(item.requires.isa)
                for variant in item.impl.variants:
                    asked.update(variant.requires)
        isa = {name: name in features for name in sorted(asked)}
        return HostFacts(name=self.host.name, devices=tuple(sorted(self.host.devices)), isa=isa)


def kill_switches(registry: Registry) -> frozenset[str]:
    """Every kill switch that some variant of the registry declares."""
    return frozenset(
        variant.kill_switch
        for item in registry.maps.values()
        for variant in item.impl.variants
        if variant.kill_switch is not None
    )


def _variants(item: KernelMap, features: frozenset[str], switches: frozenset[str]) -> tuple[PlanVariant, ...]:
    return tuple(_variant(variant, features, switches) for variant in item.impl.variants)


def _variant(variant: Variant, features: frozenset[str], switches: frozenset[str]) -> PlanVariant:
    missing = [feature for feature in variant.requires if feature not in features]
    why = ""
    if variant.kill_switch is not None and variant.kill_switch in switches:
        why = f"{variant.kill_switch} is set"
    elif missing:
        why = f"host lacks {', '.join(missing)}"
    return PlanVariant(
        name=variant.name,
        enabled=not why,
        why_not=why,
        guards=dict(sorted(variant.shape_constraints.items())),
        fallback=variant.fallback,
        kill_switch=variant.kill_switch,
    )


def _weight_uses(case: Case, chosen: KernelMap | None) -> tuple[WeightUse, ...]:
    prepared = prepared_bytes(chosen, case.shared.dims) if chosen is not None else {}
    first = case.instances[0]
    return tuple(_weight_use(port, weight, prepared.get(port)) for port, weight in first.weights.items())


def _weight_use(port: str, weight: BoundWeight, prepared: tuple[str, int] | None) -> WeightUse:
    return WeightUse(
        port=port,
        tensor=weight.pattern,
        format=weight.tensor.format,
        shape=weight.shape,
        rows=weight.rows,
        prepared_format=prepared[0] if prepared else None,
        prepared_bytes=prepared[1] if prepared else 0,
    )


def _layers_text(case: Case) -> str:
    layers = [instance.layer for instance in case.instances if instance.layer is not None]
    return f", layers {layer_ranges(layers)}" if layers else ""


def layer_ranges(layers: Sequence[int]) -> str:
    """``0-3,5,7-9``."""
    parts: list[str] = []
    start = previous = None
    for layer in (*sorted(layers), None):
        if previous is not None and layer == previous + 1:
            previous = layer
            continue
        if start is not None:
            parts.append(f"{start}" if start == previous else f"{start}-{previous}")
        start = previous = layer
    return ",".join(parts)
