"""The fail-closed resolver: binds each op to the highest eligible provider of its group, or refuses."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from kernelmap.budget import Served, budget_reason, prepared_bytes
from kernelmap.checks import Question, Rules, evidence_gap, reasons
from kernelmap.circuit.elaborate import elaborate
from kernelmap.circuit.instances import BoundWeight, Elaborated, OpInstance, SharedOp
from kernelmap.collection import collection_paused
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
    with collection_paused():
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
class _Ladder:
    """The maps of a group with what the checks say of each; one for all cases that ask the checks the same."""

    rows: tuple[tuple[KernelMap, list[Reason]], ...]
    tied: tuple[KernelMap, ...] = ()
    """The eligible maps of the highest priority: one is selected, none is a hole, more are a tie."""
    candidates: tuple[Candidate, ...] = ()
    variants: tuple[PlanVariant, ...] = ()
    """Those of the selected map."""

    @property
    def chosen(self) -> KernelMap | None:
        """The selected map."""
        return self.tied[0] if len(self.tied) == 1 else None

    def rank(self, features: frozenset[str], switches: frozenset[str]) -> None:
        """Picks the highest eligible map and makes the records, when every check is through."""
        eligible = [item for item, why in self.rows if not why]
        self.tied = tuple(item for item in eligible if item.selection.priority == eligible[0].selection.priority)
        self.candidates = tuple(self._candidate(item, why) for item, why in self.rows)
        if (chosen := self.chosen) is not None:
            self.variants = tuple(_variant(variant, features, switches) for variant in chosen.impl.variants)

    def _candidate(self, item: KernelMap, why: list[Reason]) -> Candidate:
        chosen, picked = self.chosen, item.selection
        if not why and chosen is not None and item is not chosen:
            facts = {"winner": chosen.id, "priority": chosen.selection.priority}
            why = [Reason(code="KM413", check="rank", message=f"outranked by {chosen.id}", facts=facts)]
        return Candidate(
            id=item.id, status=picked.status, priority=picked.priority, phases=picked.phases,
            selected=item is chosen, reasons=tuple(why),
        )  # fmt: skip


@dataclass(slots=True)
class _Decider:
    elaborated: Elaborated
    source: JsonSource
    registry: Registry
    host: Host
    rules: Rules
    features: frozenset[str] = field(init=False)
    problems: list[Diagnostic] = field(default_factory=list)
    warnings: list[PlanWarning] = field(default_factory=list)

    def run(self, policy: Policy) -> Resolution:
        cases = cases_of(self.elaborated)
        self.features = frozenset(self.host.isa)
        found = self._ladders(cases)
        self._budgets(cases, found)
        for ladder in {id(ladder): ladder for ladder in found}.values():
            ladder.rank(self.features, self.rules.kill_switches)
        decisions = tuple(self._decision(case, ladder) for case, ladder in zip(cases, found, strict=True))
        self._policy_names(policy, cases)
        self._warn(decisions, policy)
        return Resolution(
            self.elaborated, cases, decisions, tuple(self.problems), tuple(self.warnings), self._facts(cases)
        )

    def _ladders(self, cases: Sequence[Case]) -> list[_Ladder]:
        """Runs the checks. Ops of one group with equal dims and params share a ladder, unless a rule names them."""
        named = {op for op, _, _ in self.rules.routes} | {op for op, _ in self.rules.pins}
        made: dict[Hashable, _Ladder] = {}
        found: list[_Ladder] = []
        for case in cases:
            shared, phase = case.shared, case.phase
            name = shared.op.name if shared.op.name in named else ""
            key = (name, phase, shared.group, tuple(shared.dims.items()), tuple(shared.params.items()))
            if key not in made:
                question = Question(shared, phase, self.host, self.features, self.rules, self.registry.evidence)
                maps = self.registry.ladders.get(shared.group, ())
                made[key] = _Ladder(tuple((item, reasons(item, question)) for item in maps))
            found.append(made[key])
        return found

    def _budgets(self, cases: Sequence[Case], found: Sequence[_Ladder]) -> None:
        """Adds the budget's reason wherever a map would serve: all or none."""
        mine: dict[int, tuple[_Ladder, list[Served]]] = {}
        for case, ladder in zip(cases, found, strict=True):
            mine.setdefault(id(ladder), (ladder, []))[1].append(Served(case.shared, case.instances))
        served: dict[str, list[Served]] = {}
        rows: dict[str, list[tuple[KernelMap, list[Reason]]]] = {}
        for ladder, entries in mine.values():
            for item, why in ladder.rows:
                if item.weight_preparation and not why:
                    served.setdefault(item.id, []).extend(entries)
                    rows.setdefault(item.id, []).append((item, why))
        for name, refused in rows.items():
            reason = budget_reason(refused[0][0], served[name])
            if reason is not None:
                for _, why in refused:
                    why.append(reason)

    def _decision(self, case: Case, ladder: _Ladder) -> Decision:
        shared, chosen = case.shared, ladder.chosen
        if chosen is None:
            self._report(case, ladder)
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
            variants=ladder.variants,
            candidates=ladder.candidates,
        )

    def _report(self, case: Case, ladder: _Ladder) -> None:
        """A tie or a hole decides nothing."""
        label = f"{case.shared.op.name} ({case.phase.value}{_layers_text(case)})"
        place = self.source.place(case.shared.where)
        if ladder.tied:
            names = " and ".join(item.id for item in ladder.tied)
            message = f"{label}: {names} tie at priority {ladder.tied[0].selection.priority}"
            self.problems.append(Diagnostic("KM452", message, place=place))
            return
        pinned = self.rules.pins.get((case.shared.op.name, case.phase))
        lines = [f"{item.id}: {'; '.join(f'{r.code} {r.message}' for r in why)}" for item, why in ladder.rows]
        help = "\n".join(lines) if lines else "the group has no provider at all"
        message = f"{label}: no provider of {case.shared.group} is eligible"
        if pinned is not None and all(item.id != pinned for item, _ in ladder.rows):
            message = f"{label}: pinned {pinned} is no provider of {case.shared.group}"
        code = "KM455" if pinned is not None else "KM450"
        self.problems.append(Diagnostic(code, message, place=place, help=help))

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
        for decision in decisions if self.rules.routes else ():
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
            gaps: dict[str, dict[str, None]] = {}
            for decision in decisions:
                if decision.provider is not None:
                    proof = self.registry.evidence.get(decision.provider)
                    gap = evidence_gap(self.registry.maps[decision.provider], decision.contract_digest, proof)
                    if gap:
                        gaps.setdefault(gap, {})[decision.provider] = None
            for gap, names in gaps.items():
                self.warnings.append(PlanWarning(code="KM461", message=f"selected with {gap}: {', '.join(names)}"))

    def _facts(self, cases: Sequence[Case]) -> HostFacts:
        asked: set[str] = set()
        for group in {case.shared.group for case in cases}:
            for item in self.registry.ladders.get(group, ()):
                asked.update(item.requires.isa)
                for variant in item.impl.variants:
                    asked.update(variant.requires)
        isa = {name: name in self.features for name in sorted(asked)}
        return HostFacts(name=self.host.name, devices=tuple(sorted(self.host.devices)), isa=isa)


def redecided(decision: Decision, case: Case, item: KernelMap, host: Host, switches: Iterable[str]) -> Decision:
    """The decision with another map of its group in place of the selected one. Runs no check: the caller has."""
    features, off = frozenset(host.isa), frozenset(switches)
    changes = {
        "provider": item.id,
        "map_digest": item.digest,
        "weights": _weight_uses(case, item),
        "variants": tuple(_variant(variant, features, off) for variant in item.impl.variants),
        "candidates": tuple(c.model_copy(update={"selected": c.id == item.id}) for c in decision.candidates),
    }
    return decision.model_copy(update=changes)


def kill_switches(registry: Registry) -> frozenset[str]:
    """Every kill switch that some variant of the registry declares."""
    return frozenset(
        variant.kill_switch
        for item in registry.maps.values()
        for variant in item.impl.variants
        if variant.kill_switch is not None
    )


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
