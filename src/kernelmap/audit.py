"""Auditing circuits on hosts: what has no provider or one only, what candidates lack; the rest in `audit_maps`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelmap.audit_maps import Seen, map_findings
from kernelmap.checks import Question
from kernelmap.circuit.elaborate import try_elaborate
from kernelmap.circuit.instances import Elaborated
from kernelmap.collection import collection_paused
from kernelmap.errors import Diagnostic, Severity
from kernelmap.explain import flip_of
from kernelmap.jsonsource import JsonSource
from kernelmap.lock import Target
from kernelmap.models.audit import Audit, AuditCandidate, AuditCell, AuditFinding
from kernelmap.models.host import Host
from kernelmap.models.plan import Decision, Reason
from kernelmap.models.policy import Policy
from kernelmap.reach import ranges, reached
from kernelmap.registry import Registry
from kernelmap.render import to_json
from kernelmap.resolver import STEPS, Case, Resolution, decide, layer_ranges, rules_of
from kernelmap.vocabulary import Phase, Status

_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


@dataclass(frozen=True, slots=True)
class Audited:
    """The record, and its findings as diagnostics, worst first."""

    record: Audit
    findings: tuple[Diagnostic, ...]


def audit(
    targets: Sequence[Target], hosts: Sequence[Host], registry: Registry, policy: Policy, *,
    whole: bool = True, strict: bool = False,
) -> Audited:  # fmt: skip
    """Resolves every circuit on every host and says what is missing, what never runs and what is not proved.

    ``whole`` also judges maps whose group none of the circuits asks for. ``strict`` makes production without valid
    evidence an error. Runs no kernel and imports none.
    """
    policy = policy.normalised()
    auditor = _Auditor(registry, policy, hosts)
    with collection_paused():
        for target in targets:
            auditor.circuit(target)
        candidates = auditor.candidates()
        found = [
            *auditor.problems, *auditor.coverage(), *(_lack_finding(item, registry) for item in candidates),
            *map_findings(registry, auditor.seen, whole=whole, strict=strict),
        ]  # fmt: skip
        found.sort(key=lambda item: (_RANK[item.severity], item.code))
        record = Audit(
            circuits=tuple(target.circuit.circuit.id for target in targets),
            hosts=tuple(host.name for host in hosts),
            maps=len(registry.maps),
            cells=tuple(auditor.cells),
            candidates=candidates,
            findings=tuple(AuditFinding.model_validate({**v, "near": tuple(v["near"])}) for v in map(to_json, found)),
        )
    return Audited(record, tuple(found))


@dataclass(frozen=True, slots=True)
class _Spot:
    """An op in a phase with one provider or none, whatever the host."""

    circuit: str
    op: str
    phase: Phase
    layers: str
    group: str
    provider: str
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class _Lack:
    """A candidate that is not selected for some ops, whatever the host."""

    id: str
    circuit: str
    phase: Phase
    ops: tuple[str, ...]
    why: str
    flip: str


@dataclass(slots=True)
class _Auditor:
    registry: Registry
    policy: Policy
    hosts: Sequence[Host]
    problems: list[Diagnostic] = field(default_factory=list)
    cells: list[AuditCell] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)
    _spots: dict[_Spot, tuple[JsonSource, list[str]]] = field(default_factory=dict)
    _lacks: dict[_Lack, tuple[tuple[Reason, ...], list[str]]] = field(default_factory=dict)

    def circuit(self, target: Target) -> None:
        """Resolves a circuit on every host."""
        circuit, source = target.circuit.circuit, target.circuit.source
        elaborated, wrong = try_elaborate(
            circuit, source, target.inventory, self.registry.contracts, self.policy.options
        )
        if elaborated is None:
            self.problems += wrong
            self.cells += [
                AuditCell(circuit=circuit.id, phase=phase, host=host.name, ops=0, problems=len(wrong))
                for host in self.hosts
                for phase in STEPS
            ]
            return
        for host in self.hosts:
            made = decide(elaborated, source, self.registry, host, self.policy)
            others = (problem for problem in made.problems if problem.code not in ("KM450", "KM455"))
            self.problems += [problem for problem in others if problem not in self.problems]
            self._cells(made, host, circuit.id, source)
            self._ladders(made, host, elaborated)
            self._variants(made, frozenset(host.isa), elaborated)

    def _cells(self, made: Resolution, host: Host, circuit: str, source: JsonSource) -> None:
        for phase in STEPS:
            decisions = [item for item in made.decisions if item.phase is phase]
            few = [item for item in decisions if sum(candidate.eligible for candidate in item.candidates) < 2]
            for item in few:
                spot = _Spot(
                    circuit, item.name, phase, layer_ranges(item.layers), item.group, item.provider or "", item.where,
                    "" if item.provider is not None else _reasons(item),
                )  # fmt: skip
                self._spots.setdefault(spot, (source, []))[1].append(host.name)
            self.cells.append(AuditCell(
                circuit=circuit, phase=phase, host=host.name, ops=len(decisions),
                holes=tuple(item.name for item in decisions if item.provider is None),
                single=tuple(item.name for item in few if item.provider is not None),
            ))  # fmt: skip

    def _ladders(self, made: Resolution, host: Host, elaborated: Elaborated) -> None:
        """What became of each map. Ops that one run of the checks decided are looked at once."""
        rules, features = rules_of(elaborated.circuit, self.policy), frozenset(host.isa)
        groups: dict[str, list[Case]] = {}
        same: dict[tuple[str, Phase, tuple[int, ...]], list[tuple[Case, Decision]]] = {}
        for case, decision in zip(made.cases, made.decisions, strict=True):
            groups.setdefault(decision.group, []).append(case)
            key = (decision.group, decision.phase, tuple(map(id, decision.candidates)))
            same.setdefault(key, []).append((case, decision))
        for entries in same.values():
            case, decision = entries[0]
            self.seen.groups.add(decision.group)
            question = Question(case.shared, case.phase, host, features, rules, self.registry.evidence)
            names = tuple(dict.fromkeys(item.name for _, item in entries))
            for item in decision.candidates:
                if item.eligible:
                    (self.seen.selected if item.selected else self.seen.outranked).add(item.id)
                if item.status is Status.CANDIDATE and not item.selected:
                    flip = flip_of(item.id, groups[decision.group], self.registry, question).text
                    why = "; ".join(f"{reason.code} {reason.message}" for reason in item.reasons)
                    lack = _Lack(item.id, elaborated.circuit.id, case.phase, names, why, flip)
                    self._lacks.setdefault(lack, (item.reasons, []))[1].append(host.name)

    def _variants(self, made: Resolution, features: frozenset[str], elaborated: Elaborated) -> None:
        tried = set()
        for case in made.cases:
            dims = ranges(case.shared, case.phase, elaborated.circuit)
            key = (case.shared.group, case.phase, tuple(dims.items()))
            if key in tried:
                continue
            tried.add(key)
            for item in self.registry.ladders.get(case.shared.group, ()):
                if case.phase in item.selection.phases:
                    found = self.seen.variants.setdefault(item.id, set())
                    if len(found) < len(item.impl.variants):
                        found |= reached(item, dims, features)

    def candidates(self) -> tuple[AuditCandidate, ...]:
        """What each candidate lacks where it is not selected."""
        return tuple(
            AuditCandidate(
                id=lack.id, circuit=lack.circuit, phase=lack.phase, ops=lack.ops, hosts=tuple(hosts), reasons=reasons,
                flip=lack.flip,
            )
            for lack, (reasons, hosts) in self._lacks.items()
        )  # fmt: skip

    def coverage(self) -> list[Diagnostic]:
        """Ops without a provider, and with one only."""
        found = []
        for spot, (source, hosts) in self._spots.items():
            layers = f", layers {spot.layers}" if spot.layers else ""
            where = f"{spot.circuit}: {spot.op} ({spot.phase.value}{layers})"
            place = source.place(spot.where)
            if spot.provider:
                message = f"{where}: nothing but {spot.provider} on {_names(hosts)}"
                found.append(Diagnostic("KM842", message, Severity.NOTE, place=place))
            else:
                message = f"{where}: no provider of {spot.group} on {_names(hosts)}"
                found.append(Diagnostic("KM841", message, place=place, help=spot.why))
        return found


def _reasons(decision: Decision) -> str:
    lines = [f"{item.id}: {'; '.join(f'{r.code} {r.message}' for r in item.reasons)}" for item in decision.candidates]
    return "\n".join(lines) or "the group has no provider at all"


def _lack_finding(item: AuditCandidate, registry: Registry) -> Diagnostic:
    ops = _names(item.ops)
    why = "; ".join(f"{reason.code} {reason.message}" for reason in item.reasons)
    message = f"{item.id} is not selected for {item.circuit} {ops} ({item.phase.value}) on {_names(item.hosts)}: {why}"
    source = registry.sources.get(item.id)
    place = source.place("/selection/status") if source is not None else None
    return Diagnostic("KM845", message, Severity.NOTE, place=place, help=item.flip)


def _names(names: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
