"""Findings about single maps: what never runs, what is claimed or in production without proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelmap.errors import Diagnostic, Severity
from kernelmap.models.kernel_map import KernelMap
from kernelmap.registry import Registry
from kernelmap.staleness import staleness
from kernelmap.vocabulary import Status


@dataclass(slots=True)
class Seen:
    """What became of maps over all circuits, phases and hosts of an audit."""

    groups: set[str] = field(default_factory=set)
    """Groups that some op asks for."""
    selected: set[str] = field(default_factory=set)
    outranked: set[str] = field(default_factory=set)
    """Maps that were eligible somewhere and not selected there."""
    variants: dict[str, set[str]] = field(default_factory=dict)
    """Map to those of its variants that some call reaches."""


def map_findings(registry: Registry, seen: Seen, *, whole: bool, strict: bool) -> Iterator[Diagnostic]:
    """Findings about every map of a group that was asked for; ``whole``: about all maps."""
    for item in registry.maps.values():
        if not item.executable:
            continue  # another engine's map is no finding here; `kernelmap foreign` audits them
        asked = item.selection.equivalence_group in seen.groups
        if not (asked or whole):
            continue
        yield from _rank(item, seen, registry, asked)
        yield from _claims(item, registry)
        if item.id in seen.variants:
            yield from _unreached(item, seen, registry)
        if item.selection.status is Status.PRODUCTION:
            why = staleness(item, registry, registry.evidence.get(item.id))
            if why:
                severity = Severity.ERROR if strict else Severity.WARNING
                message = f"{item.id} is in production: {', '.join(why)}"
                yield _finding("KM848", message, severity, item, registry, "/selection/status")


def _rank(item: KernelMap, seen: Seen, registry: Registry, asked: bool) -> Iterator[Diagnostic]:
    status, name = item.selection.status, item.id
    if status not in (Status.PRODUCTION, Status.CANDIDATE) or name in seen.selected:
        return
    where = "/selection/priority"
    if name in seen.outranked:
        message = f"{name} is outranked wherever it is eligible"
        yield _finding("KM843", message, Severity.WARNING, item, registry, where)
    elif not asked:
        message = f"{name}: no audited circuit asks for {item.selection.equivalence_group}"
        yield _finding("KM844", message, Severity.NOTE, item, registry, "/selection/equivalence_group")
    elif status is Status.PRODUCTION:
        message = f"{name} is eligible in no audited circuit, phase and host"
        yield _finding("KM844", message, Severity.NOTE, item, registry, where)


def _claims(item: KernelMap, registry: Registry) -> Iterator[Diagnostic]:
    for index, claim in enumerate(item.claims):
        if claim.reproduced is None:
            message = f"{item.id} claims {claim.text!r} ({claim.source}), and nothing was measured here"
            yield _finding("KM846", message, Severity.NOTE, item, registry, f"/claims/{index}")


def _unreached(item: KernelMap, seen: Seen, registry: Registry) -> Iterator[Diagnostic]:
    for index, variant in enumerate(item.impl.variants):
        if not variant.is_base and variant.name not in seen.variants[item.id]:  # a base there must be, run or not
            guards = " and ".join(f"{dim} {'>=' if side == 'min' else '<='} {n}" for dim, side, n in variant.guards)
            needs = " with ".join(text for text in (guards, ", ".join(variant.requires)) if text)
            message = f"{item.id}: no audited shape and host reaches variant {variant.name}"
            note = f"it needs {needs or 'that none before it runs'}"
            yield _finding("KM847", message, Severity.WARNING, item, registry, f"/impl/variants/{index}", note)


def _finding(
    code: str, message: str, severity: Severity, item: KernelMap, registry: Registry, where: str, help: str = ""
) -> Diagnostic:
    source = registry.sources.get(item.id)
    return Diagnostic(code, message, severity, place=source.place(where) if source is not None else None, help=help)
