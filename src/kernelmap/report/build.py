"""Making the record of a report: what the resolver decided for circuits on hosts, and what the audit found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kernelmap import __version__
from kernelmap.audit import audit
from kernelmap.circuit.elaborate import try_elaborate
from kernelmap.collection import collection_paused
from kernelmap.lock import Target
from kernelmap.models.base import canonical_json
from kernelmap.models.diff import Diff
from kernelmap.models.host import Host
from kernelmap.models.plan import Decision
from kernelmap.models.policy import Policy
from kernelmap.models.report import Report, ReportDecision, ReportGroup, ReportMap
from kernelmap.registry import Registry
from kernelmap.report.places import from_here, shown
from kernelmap.resolver import decide
from kernelmap.staleness import staleness

Progress = Callable[[str, int, int], None]
"""Takes what is being done, how many are done, and of how many."""


def _silent(_what: str, _done: int, _total: int) -> None:
    return None


def make_report(
    targets: Sequence[Target], hosts: Sequence[Host], registry: Registry, policy: Policy, *,
    whole: bool = True, diff: Diff | None = None, progress: Progress = _silent,
) -> Report:  # fmt: skip
    """The decisions of every circuit on every host, holes among them, with the audit of the same circuits and hosts.

    ``whole`` also takes in groups that none of the circuits asks for. ``diff`` is shown as it is. Runs no kernel and
    imports none. Raises nothing for circuits that do not resolve: the audit's findings say why.
    """
    policy = policy.normalised()
    decisions: list[ReportDecision] = []
    for done, target in enumerate(targets):
        progress(target.circuit.circuit.id, done, len(targets) + 1)
        decisions += _decisions(target, hosts, registry, policy)
    progress("audit", len(targets), len(targets) + 1)
    audited = audit(targets, hosts, registry, policy, whole=whole)
    asked = {item.decision.group for item in decisions}
    groups = [name for name in registry.contracts if name in asked or (whole and registry.ladders.get(name))]
    return Report(
        made_by=f"kernelmap {__version__}",
        decisions=tuple(decisions),
        groups=tuple(_group(name, registry) for name in groups),
        maps=tuple(_map(name, registry) for name in _of_groups(registry, set(groups))),
        audit=shown(audited.record),
        diff=diff,
    )


def _decisions(
    target: Target, hosts: Sequence[Host], registry: Registry, policy: Policy
) -> Iterator[ReportDecision]:  # fmt: skip
    """Every decision of a circuit; hosts that share one to the last fact stand in it together."""
    circuit, source = target.circuit.circuit, target.circuit.source
    found: dict[str, tuple[Decision, list[str]]] = {}
    with collection_paused():
        elaborated, _ = try_elaborate(circuit, source, target.inventory, registry.contracts, policy.options)
        for host in hosts if elaborated is not None else ():
            assert elaborated is not None
            for decision in decide(elaborated, source, registry, host, policy).decisions:
                key = canonical_json(decision.model_dump(mode="json"))
                found.setdefault(key, (decision, []))[1].append(host.name)
    for decision, names in found.values():
        yield ReportDecision(circuit=circuit.id, hosts=tuple(names), decision=decision)


def _of_groups(registry: Registry, groups: set[str]) -> Iterator[str]:
    return (item.id for item in registry.maps.values() if item.selection.equivalence_group in groups)


def _group(name: str, registry: Registry) -> ReportGroup:
    contract, source = registry.contracts[name], registry.contract_sources.get(name)
    return ReportGroup(
        contract=contract, digest=contract.digest, file=from_here(source.name if source is not None else "")
    )


def _map(name: str, registry: Registry) -> ReportMap:
    item, source, proof = registry.maps[name], registry.sources.get(name), registry.evidence.get(name)
    return ReportMap(
        map=item, digest=item.digest, file=from_here(source.name if source is not None else ""), evidence=proof,
        gaps=staleness(item, registry, proof),
    )  # fmt: skip
