"""The eligibility checks, in their fixed order: each returns a reason, or None if the map passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelmap.circuit.instances import SharedOp
from kernelmap.models.evidence import Evidence
from kernelmap.models.host import Host
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.plan import Reason
from kernelmap.models.policy import EvidencePolicy
from kernelmap.vocabulary import Device, Phase, Status

_ONLY = {Phase.INIT: "init only", Phase.PREFILL: "prefill only", Phase.DECODE: "decode only"}


@dataclass(frozen=True, slots=True)
class Rules:
    """A policy and a circuit's routes, indexed by what the checks ask."""

    routes: frozenset[tuple[str, Phase, str]]
    """(op, phase, provider) that may compete."""
    exclude: frozenset[str]
    pins: Mapping[tuple[str, Phase], str]
    evidence: EvidencePolicy
    kill_switches: frozenset[str]


@dataclass(frozen=True, slots=True)
class Question:
    """One op in one phase on one host: what a check is asked about."""

    shared: SharedOp
    phase: Phase
    host: Host
    features: frozenset[str]
    rules: Rules
    evidence: Mapping[str, Evidence]

    @property
    def name(self) -> str:
        """The op's name in the circuit."""
        return self.shared.op.name


def check_foreign(item: KernelMap, question: Question) -> Reason | None:
    """The provider has code here. That of another engine has none, whatever else is said of it."""
    if item.foreign is None:
        return None
    facts = {"engine": item.foreign.engine, "id": item.foreign.id}
    return Reason(code="KM414", check="foreign", message="foreign: not executable", facts=facts)


def check_status(item: KernelMap, question: Question) -> Reason | None:
    """Candidates need a route; diagnostic and deprecated providers are never selected."""
    status = item.selection.status
    if status is Status.PRODUCTION:
        return None
    if status is Status.CANDIDATE:
        if (question.name, question.phase, item.id) in question.rules.routes:
            return None
        return Reason(code="KM401", check="status", message="no route allows it", facts={"status": status.value})
    if status is Status.DIAGNOSTIC:
        return Reason(
            code="KM403", check="status", message="diagnostic: run by name only", facts={"status": status.value}
        )
    return Reason(code="KM404", check="status", message="deprecated", facts={"status": status.value})


def check_phase(item: KernelMap, question: Question) -> Reason | None:
    """The map lists the phase."""
    phases = item.selection.phases
    if question.phase in phases:
        return None
    message = _ONLY[phases[0]] if len(phases) == 1 else f"not for {question.phase.value}"
    facts = {"phase": question.phase.value, "phases": tuple(phase.value for phase in phases)}
    return Reason(code="KM402", check="phase", message=message, facts=facts)


def check_isa(item: KernelMap, question: Question) -> Reason | None:
    """The host has every feature that the map requires."""
    missing = tuple(feature for feature in item.requires.isa if feature not in question.features)
    if not missing:
        return None
    return Reason(code="KM405", check="isa", message=f"host lacks {', '.join(missing)}", facts={"missing": missing})


def check_device(item: KernelMap, question: Question) -> Reason | None:
    """The host has the device."""
    device = item.requires.device
    if device is Device.ANY or device.value in question.host.devices:
        return None
    message = f"host has no {device.value}"
    return Reason(code="KM406", check="device", message=message, facts={"device": device.value})


def check_dims(item: KernelMap, question: Question) -> Reason | None:
    """The static dims fit the map's constraints."""
    if not item.executable:
        return None  # its limits are on the dims of its own engine: an equal name need not mean an equal dim
    broken = []
    for name, constraint in item.constraints.dims.items():
        if need := constraint.refusal(name, question.shared.dims[name]):
            broken.append((name, need))
    if not broken:
        return None
    given = ", ".join(f"{name} = {question.shared.dims[name]}" for name, _ in broken)
    message = f"needs {' and '.join(need for _, need in broken)} ({given})"
    return Reason(code="KM407", check="dims", message=message, facts={"needs": tuple(need for _, need in broken)})


def check_evidence(item: KernelMap, question: Question) -> Reason | None:
    """Under ``require``, a passing certificate for this very contract and map."""
    if question.rules.evidence != "require":
        return None
    why = evidence_gap(item, question.shared.contract.digest, question.evidence.get(item.id))
    return Reason(code="KM410", check="evidence", message=why, facts={"policy": "require"}) if why else None


def check_exclude(item: KernelMap, question: Question) -> Reason | None:
    """The policy does not exclude the map."""
    if item.id not in question.rules.exclude:
        return None
    return Reason(code="KM411", check="exclude", message="excluded by policy", facts={"id": item.id})


def check_pin(item: KernelMap, question: Question) -> Reason | None:
    """No other map is pinned."""
    pinned = question.rules.pins.get((question.name, question.phase))
    if pinned is None or pinned == item.id:
        return None
    return Reason(code="KM412", check="pin", message=f"{pinned} is pinned", facts={"pinned": pinned})


Check = Callable[[KernelMap, Question], Reason | None]
CHECKS: tuple[Check, ...] = (
    check_foreign,
    check_status,
    check_phase,
    check_isa,
    check_device,
    check_dims,
    check_evidence,
    check_exclude,
    check_pin,
)
"""Every check, in the order of the reasons. The preparation budget (KM408) needs the whole circuit and comes after."""


def evidence_gap(item: KernelMap, contract_digest: str, proof: Evidence | None) -> str:
    """Why the evidence does not cover the map; empty if it does."""
    if proof is None:
        return "no evidence"
    if proof.result != "pass":
        return "a certificate that says fail"
    if proof.contract_digest != contract_digest:
        return "evidence for another contract"
    if proof.map_digest != item.proved_digest:
        return "evidence for another map"
    return ""


def reasons(item: KernelMap, question: Question) -> list[Reason]:
    """Every reason of every check, in order."""
    return [reason for check in CHECKS if (reason := check(item, question)) is not None]
