"""Reports to look at: of the shipped circuits with the toy one, with hostile texts, and one of 10,000 maps."""

from __future__ import annotations

from kernelmap.circuit.loading import circuit_paths, read_circuit
from kernelmap.circuit.storage import reference_inventory
from kernelmap.host import load_host, profile_names
from kernelmap.lock import Target
from kernelmap.models.audit import AuditFinding
from kernelmap.models.plan import Candidate, Reason
from kernelmap.models.policy import Policy
from kernelmap.models.report import Report, ReportDecision, ReportGroup, ReportMap
from kernelmap.registry import load_registry
from kernelmap.report.build import make_report
from kernelmap.vocabulary import Status
from toy import CIRCUIT, MAPS, toy_packages

HOSTILE = "</script><script>bad(1)</script><!-- <img src=x onerror=bad(2)> \" ' & \u2028 {{ 7 * 7 }} </title>"
"""Ends elements, begins comments, breaks quotes and templates; ``bad`` would be an error in the page's console."""


def target(name: str) -> Target:
    circuit = read_circuit(name)
    return Target(name, circuit, reference_inventory(circuit.circuit, circuit.source))


def shipped_report(*exclude: str) -> Report:
    """All shipped circuits and the toy circuit on all shipped hosts."""
    with toy_packages():
        registry = load_registry((MAPS,))
        targets = [target(name) for name in (*circuit_paths(()), str(CIRCUIT))]
        hosts = [load_host(name) for name in profile_names()]
        return make_report(targets, hosts, registry, Policy(exclude=exclude))


def hostile(report: Report) -> Report:
    """The report with a hostile text wherever a text can stand."""
    first = report.maps[0]
    text = first.map.model_copy(update={"id": HOSTILE, "summary": HOSTILE, "caveats": (HOSTILE,)})
    entry = report.decisions[0]
    reason = Reason(code="KM401", check="route", message=HOSTILE)
    candidate = Candidate(id=HOSTILE, status=Status.CANDIDATE, priority=1, phases=(), reasons=(reason,))
    decision = entry.decision.model_copy(
        update={"candidates": (*entry.decision.candidates, candidate), "name": HOSTILE}
    )
    finding = AuditFinding(
        code="KM845", severity="note", message=HOSTILE, file=HOSTILE, line=1, column=1, pointer="", expected=None,
        found=None, near=(), help=HOSTILE,
    )  # fmt: skip
    cells = tuple(
        cell.model_copy(update={"circuit": HOSTILE, "host": HOSTILE, "single": (HOSTILE,)})
        for cell in report.audit.cells[:3]
    )
    audit = report.audit.model_copy(
        update={"findings": (finding,), "cells": cells, "circuits": (HOSTILE,), "hosts": (HOSTILE,)}
    )
    return report.model_copy(
        update={
            "maps": (first.model_copy(update={"map": text, "file": HOSTILE}), *report.maps[1:]),
            "decisions": (ReportDecision(circuit=HOSTILE, hosts=(HOSTILE,), decision=decision), *report.decisions[1:]),
            "audit": audit,
            "made_by": HOSTILE,
        }
    )


def large_report(report: Report, size: int) -> Report:
    """The report's first decisions over and over, under other names, until there are ``size`` maps."""
    maps: list[ReportMap] = []
    groups: list[ReportGroup] = []
    decisions: list[ReportDecision] = []
    findings: list[AuditFinding] = []
    known = {item.map.id: item for item in report.maps}
    contracts = {item.contract.equivalence_group: item for item in report.groups}
    while len(maps) < size:
        entry = report.decisions[len(decisions) % len(report.decisions)]
        number, old = len(decisions), entry.decision
        group = f"{old.group}_{number}"
        candidates = tuple(item.model_copy(update={"id": f"{item.id}_{number}"}) for item in old.candidates)
        decision = old.model_copy(update={"name": f"{old.name}_{number}", "group": group, "candidates": candidates})
        decisions.append(entry.model_copy(update={"decision": decision}))
        contract = contracts[old.group].contract.model_copy(update={"equivalence_group": group})
        groups.append(contracts[old.group].model_copy(update={"contract": contract}))
        for item in old.candidates:
            one = known[item.id]
            selection = one.map.selection.model_copy(update={"equivalence_group": group})
            copied = one.map.model_copy(update={"id": f"{item.id}_{number}", "selection": selection})
            maps.append(one.model_copy(update={"map": copied}))
            message = f"{copied.id} is in production: no evidence"
            findings.append(report.audit.findings[0].model_copy(update={"message": message}))
    audit = report.audit.model_copy(update={"findings": tuple(findings)})
    made = {"maps": tuple(maps[:size]), "groups": tuple(groups), "decisions": tuple(decisions), "audit": audit}
    return report.model_copy(update=made)
