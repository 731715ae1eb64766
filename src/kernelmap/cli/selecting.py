"""``resolve`` and ``explain``."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer

from kernelmap.cli import options
from kernelmap.cli.auditing import refuse_drift
from kernelmap.cli.output import CLEAN, PROBLEM, Format, emit, emit_json, report
from kernelmap.decision_text import decision_text, plan_text
from kernelmap.explanation import Explanation
from kernelmap.explanation import explain as explain_op
from kernelmap.lock import locked_policy, read_lock
from kernelmap.resolver import resolve as resolve_circuit
from kernelmap.vocabulary import Phase, Status


def resolve(
    target: Annotated[str, typer.Argument(help="A circuit (name or path), or a model file whose circuit is found.")],
    model: options.ModelOption = None,
    host: options.HostOption = None,
    phase: options.PhaseOption = None,
    route: options.RouteOption = None,
    pin: options.PinOption = None,
    exclude: options.ExcludeOption = None,
    evidence: options.EvidenceOption = None,
    option: options.SettingOption = None,
    policy: options.PolicyOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    locked: options.LockedOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Bind every op of a circuit to one provider, or refuse."""
    shown = options.phases_of(phase)
    registry = options.registry_of(maps)
    chosen = options.policy_of(registry, policy, route, pin, exclude, evidence, option)
    about = options.subject(target, model, circuits)
    before = read_lock(locked) if locked is not None else None
    if before is not None:
        chosen = locked_policy(before, chosen)
    plan = resolve_circuit(
        about.circuit.circuit, about.circuit.source, about.inventory, registry, options.host_of(host), chosen
    )
    if before is not None:
        refuse_drift(before, plan, about, registry, host, chosen)
    if output is Format.JSON:
        value: dict[str, Any] = plan.model_dump(mode="json", by_alias=True, exclude={"schema_ref"})
        value["decisions"] = [item for item in value["decisions"] if not shown or item["phase"] in shown]
        emit_json({**value, "digest": plan.digest})
    else:
        emit(plan_text(plan, storage=about.storage, phases=shown))
    return CLEAN


def explain(
    target: Annotated[str, typer.Argument(help="A circuit (name or path), or a model file whose circuit is found.")],
    op: Annotated[str, typer.Argument(help="An op of the circuit.")],
    why_not: Annotated[str | None, typer.Option("--why-not", metavar="ID", help="Only about this provider.")] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Only this layer.", min=0)] = None,
    model: options.ModelOption = None,
    host: options.HostOption = None,
    phase: options.PhaseOption = None,
    route: options.RouteOption = None,
    pin: options.PinOption = None,
    exclude: options.ExcludeOption = None,
    evidence: options.EvidenceOption = None,
    option: options.SettingOption = None,
    policy: options.PolicyOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Say why a provider was or was not selected, and the smallest change that would select it."""
    shown = options.phases_of(phase)
    registry = options.registry_of(maps)
    chosen = options.policy_of(registry, policy, route, pin, exclude, evidence, option)
    about = options.subject(target, model, circuits)
    found, resolution = explain_op(
        about.circuit, about.inventory, registry, options.host_of(host), chosen, op,
        phase=Phase(shown[0]) if len(shown) == 1 else None, layer=layer, why_not=why_not,
    )  # fmt: skip
    found = [item for item in found if not shown or item.decision.phase in shown]
    if output is Format.JSON:
        emit_json({"explanations": [_value(item) for item in found]})
    else:
        emit("\n\n".join(decision_text(i.decision, storage=about.storage, flips=i.flips) for i in found))
        if why_not is not None:
            emit("\n" + "\n".join(dict.fromkeys(_why_not(item, why_not) for item in found)))
    unresolved = [problem for problem in resolution.problems if problem.message.startswith(op)]
    if unresolved and output is not Format.JSON:
        report(unresolved)
    return PROBLEM if unresolved else CLEAN


def _why_not(item: Explanation, provider: str) -> str:
    """The answer in one sentence."""
    candidate = next(entry for entry in item.decision.candidates if entry.id == provider)
    where = f"{item.decision.name} ({item.decision.phase.value})"
    why = " and ".join(reason.message for reason in candidate.reasons)
    text = f"{provider} is not selected for {where}: {_ARTICLES[candidate.status]}, and {why}."
    if candidate.selected:
        text = f"{provider} is selected for {where}."
    return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)


_ARTICLES = {
    Status.PRODUCTION: "in production",
    Status.CANDIDATE: "a candidate",
    Status.DIAGNOSTIC: "diagnostic",
    Status.DEPRECATED: "deprecated",
}


def _value(item: Explanation) -> dict[str, Any]:
    flips = {
        name: {"text": flip.text, "changes": [{"kind": c.kind, "text": c.text, "flag": c.flag} for c in flip.changes]}
        for name, flip in item.flips.items()
    }
    return {"decision": item.decision.model_dump(mode="json"), "flips": flips}
