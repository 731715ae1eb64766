"""Decision records as text of 80 columns, stable enough to diff."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from kernelmap.explain import Flip
from kernelmap.models.plan import Candidate, Decision, Plan, PlanVariant
from kernelmap.resolver import layer_ranges

WIDTH = 80
_SIGNS = {"min": ">=", "max": "<="}


def decision_text(
    decision: Decision, *, storage: str = "model file", flips: Mapping[str, Flip] | None = None, full: bool = True
) -> str:
    """One decision: its group, the formats that filled the group, and every provider with every reason.

    ``full`` adds the group and its formats; ``flips`` adds the smallest change that would select each provider.
    """
    lines = [_heading(decision)]
    if full:
        lines += _wrapped("  group  ", decision.group)
        lines += _formats(decision, storage)
    width = min(48, max((len(item.id) for item in decision.candidates), default=0))
    for item in sorted(decision.candidates, key=lambda item: not item.selected):
        lines += _candidate(item, decision, width)
        if flips is not None and item.id in flips:
            lines += _wrapped("      ", flips[item.id].text)
    if not decision.candidates:
        lines.append("  the group has no provider")
    return "\n".join(lines)


def plan_text(plan: Plan, *, storage: str = "model file", phases: Iterable[str] = (), full: bool = False) -> str:
    """The decisions of a plan, its resident weights and its digest. ``phases`` filters what is shown."""
    shown = set(phases)
    parts = [
        decision_text(decision, storage=storage, full=full)
        for decision in plan.decisions
        if not shown or decision.phase.value in shown
    ]
    parts.append(residency_text(plan))
    for warning in plan.warnings:
        parts.append("\n".join(_wrapped(f"warning[{warning.code}]: ", warning.message)))
    parts.append(f"plan {plan.digest}\n  circuit {plan.circuit}  host {plan.host.name}")
    return "\n\n".join(part for part in parts if part)


def residency_text(plan: Plan) -> str:
    """Every form in which a weight stays in memory, with its bytes."""
    lines = ["resident weights"]
    for item in plan.residency:
        many = f" x{item.count}" if item.count > 1 else ""
        lines.append(f"  {item.tensor + many:<46} {item.form:<12} {item.bytes:>18,}")
    lines.append(f"  {'total bytes':<46} {'':<12} {plan.total_bytes:>18,}")
    return "\n".join(lines)


def variants_text(variants: Iterable[PlanVariant]) -> str:
    """``parallel_workspace if R>=8, else serial``; switched-off variants with the reason."""
    parts: list[str] = []
    off: list[str] = []
    for variant in variants:
        if not variant.enabled:
            off.append(f"{variant.name} off: {variant.why_not}")
            continue
        guards = [f"{name[:-4]}{_SIGNS[name[-3:]]}{bound}" for name, bound in variant.guards.items()]
        parts.append(f"{variant.name} if {' and '.join(guards)}" if guards else variant.name)
        if not guards:
            break
    text = ", else ".join(parts)
    return f"{text} ({'; '.join(off)})" if off else text


def _heading(decision: Decision) -> str:
    layers = f"layers {layer_ranges(decision.layers)}" if len(decision.layers) > 1 else ""
    if len(decision.layers) == 1:
        layers = f"layer {decision.layers[0]}"
    return "  ".join(part for part in (decision.name, decision.phase.value, layers) if part)


def _formats(decision: Decision, storage: str) -> Iterator[str]:
    for use in decision.weights:
        first = decision.layers[0] if decision.layers else 0
        tensor = use.tensor.replace("{layer}", str(first))
        rows = f" rows {use.rows[0]}-{use.rows[1] - 1}" if use.rows else ""
        yield f"         {{{use.port}}}={use.format} from {tensor}{rows} ({storage})"
        if use.prepared_format:
            yield f"           prepared as {use.prepared_format}"


def _candidate(item: Candidate, decision: Decision, width: int) -> list[str]:
    mark = ">" if item.selected else " "
    rank = f"{item.status.value} {item.priority}"
    if item.selected:
        what = variants_text(decision.variants)
    else:
        what = "; ".join(f"{reason.code} {reason.message}" for reason in item.reasons)
    head = f"{mark} {item.id:<{width}} {rank:<14}"
    if len(head) + 1 + len(what) <= WIDTH:
        return [f"{head} {what}"]
    return [head.rstrip(), *_wrapped("      ", what)]


def _wrapped(lead: str, text: str) -> list[str]:
    indent = " " * len(lead)
    return textwrap.wrap(
        text, WIDTH, initial_indent=lead, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [lead.rstrip()]
