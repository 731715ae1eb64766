"""The checks that a kernel map must pass to be in a registry, and the lints that warn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from kernelmap.errors import Diagnostic, Severity, nearest
from kernelmap.expressions import SizeExpr
from kernelmap.jsonsource import JsonSource
from kernelmap.models.contract import Contract
from kernelmap.models.kernel_map import KernelMap
from kernelmap.sources import module_file, provider_packages
from kernelmap.vocabulary import Device, Phase, Status


def map_problems(item: KernelMap, source: JsonSource, contracts: Mapping[str, Contract]) -> list[Diagnostic]:
    """Everything that is wrong with one map, given the contracts of the registry."""
    found = [*_identity(item, source), *_variants(item, source), *_implementations(item, source)]
    if not item.executable:
        return found  # what another engine says of its own dims, ports and groups is no error here, whatever it says
    group = item.selection.equivalence_group
    contract = contracts.get(group)
    if contract is None:
        near = nearest(group, contracts)
        place = source.place("/selection/equivalence_group")
        found.append(Diagnostic("KM203", f"group {group!r} has no contract", place=place, near=near))
        return found
    found += _against_contract(item, source, contract)
    return found


def _identity(item: KernelMap, source: JsonSource) -> Iterator[Diagnostic]:
    stem = Path(source.name).stem
    if stem != item.id:
        help = f"rename the file to {item.id}.json, or the id to {stem}"
        yield Diagnostic("KM202", f"id {item.id!r} in a file named {stem!r}", place=source.place("/id"), help=help)


def _variants(item: KernelMap, source: JsonSource) -> Iterator[Diagnostic]:
    by_name = item.impl.by_name
    for index, variant in enumerate(item.impl.variants):
        where = f"/impl/variants/{index}"
        if variant.is_base:
            continue
        if variant.fallback is None:
            message = f"variant {variant.name!r} may be kept from running and names no fallback"
            yield Diagnostic("KM206", message, place=source.place(where), help=f'"fallback": "{item.impl.base.name}"')
        elif variant.fallback not in by_name:
            near = nearest(variant.fallback, by_name)
            message = f"fallback {variant.fallback!r} is no declared variant"
            yield Diagnostic("KM206", message, place=source.place(f"{where}/fallback"), near=near)
        elif list(by_name).index(variant.fallback) < index:
            message = f"fallback {variant.fallback!r} of {variant.name!r} stands before it"
            help = "list variants in the order in which they are tried: a fallback comes after, so no circle can be"
            yield Diagnostic("KM215", message, place=source.place(f"{where}/fallback"), help=help)


def _implementations(item: KernelMap, source: JsonSource) -> Iterator[Diagnostic]:
    for where, function in function_paths(item):
        module = function.partition(":")[0]
        if not _registered(module):
            names = ", ".join(package.name for package in provider_packages())
            yield Diagnostic(
                "KM207",
                f"{module!r} lies in no registered provider package",
                place=source.place(where),
                help=f"registered (entry point group kernelmap.providers): {names}",
            )


@lru_cache(maxsize=4096)
def _registered(module: str) -> bool:
    return any(package.owns(module) for package in provider_packages())


def function_paths(item: KernelMap) -> Iterator[tuple[str, str]]:
    """(JSON pointer, ``module:function``) of every function that a map names."""
    if item.impl.function is not None:
        yield "/impl/function", item.impl.function
    for index, variant in enumerate(item.impl.variants):
        if variant.function is not None:
            yield f"/impl/variants/{index}/function", variant.function
    for index, hook in enumerate(item.weight_preparation):
        yield f"/weight_preparation/{index}/function", hook.function


def not_executable(item: KernelMap, source: JsonSource | None = None) -> Diagnostic:
    """Refuses to run or prove another engine's provider, placed in its map: there is no code of it here."""
    place = source.place("/impl/backend") if source is not None else None
    message = f"{item.id} is foreign: there is no code of it here"
    return Diagnostic("KM513", message, place=place, help="the resolver never selects one: name a provider with code")


def missing_functions(item: KernelMap, source: JsonSource) -> Iterator[Diagnostic]:
    """Functions that a map names and no source file defines, found without importing anything."""
    for where, function in function_paths(item):
        module, _, name = function.partition(":")
        path = module_file(module)
        if path is None:
            yield Diagnostic("KM217", f"module {module!r} does not exist", place=source.place(where))
        elif not re.search(rf"^(def {name}\b|{name}\s*[:=])", path.read_text(encoding="utf-8"), re.MULTILINE):
            yield Diagnostic("KM217", f"{module} defines no {name!r}", place=source.place(where))


def _against_contract(item: KernelMap, source: JsonSource, contract: Contract) -> Iterator[Diagnostic]:
    if item.op != contract.op:
        message = f"op {item.op!r}, but the group's contract is for {contract.op!r}"
        yield Diagnostic("KM208", message, place=source.place("/op"), expected=contract.op, found=item.op)
    for name in item.constraints.dims:
        if name in contract.static_dims:
            continue  # a place costs a second parse of the file: it is looked up only where there is a problem
        place = source.place(f"/constraints/dims/{name}", key=True)
        if name in contract.dynamic_dims:
            help = "limit it in a variant's shape_constraints: a dynamic dim is known only at run time"
            yield Diagnostic("KM205", f"constraint on dynamic dim {name!r}", place=place, help=help)
        else:
            near = nearest(name, contract.static_dims)
            yield Diagnostic("KM210", f"constraint on unknown dim {name!r}", place=place, near=near)
    for index, variant in enumerate(item.impl.variants):
        for dim, _, _ in variant.guards:
            if dim not in contract.dims:
                place = source.place(f"/impl/variants/{index}/shape_constraints")
                near = nearest(dim, contract.dims)
                yield Diagnostic("KM210", f"guard on unknown dim {dim!r}", place=place, near=near)
    yield from _preparations(item, source, contract)
    taken = set(contract.ports) | {"threads"}
    for index, scratch in enumerate(item.scratch):
        where = f"/scratch/{index}"
        if scratch.name in taken:
            yield Diagnostic("KM214", f"scratch name {scratch.name!r} is taken", place=source.place(f"{where}/name"))
        taken.add(scratch.name)
        known = frozenset(contract.dims) | {"threads"}
        yield from _unknown_names(scratch.size_bytes, known, source, f"{where}/size_bytes")


def _preparations(item: KernelMap, source: JsonSource, contract: Contract) -> Iterator[Diagnostic]:
    ports = {port.name for port in contract.weights}
    seen: set[str] = set()
    for index, hook in enumerate(item.weight_preparation):
        where = f"/weight_preparation/{index}"
        for slot, name in enumerate(hook.weights):
            at = f"{where}/weights/{slot}"
            if name not in ports:
                near, message = nearest(name, ports), f"{name!r} is no weight port of the contract"
                yield Diagnostic("KM211", message, place=source.place(at), near=near)
            elif name in seen:
                yield Diagnostic("KM211", f"weight {name!r} is prepared twice", place=source.place(at))
            seen.add(name)
        yield from _unknown_names(hook.prepared_bytes, contract.static_dims, source, f"{where}/prepared_bytes")


def _unknown_names(expr: SizeExpr, known: frozenset[str], source: JsonSource, where: str) -> Iterator[Diagnostic]:
    for name in sorted(expr.names - known):
        near = nearest(name, known)
        yield Diagnostic("KM209", f"size names {name!r}, which is no dim here", place=source.place(where), near=near)


def rank_problems(maps: Iterable[KernelMap], sources: Mapping[str, JsonSource]) -> list[Diagnostic]:
    """Two maps of equal priority in one group that share a phase, whatever their status or ISA.

    Foreign maps are never eligible, so that their ties decide nothing here; ``kernelmap foreign`` reports them.
    """
    found: list[Diagnostic] = []
    first: dict[tuple[str, int, Phase], str] = {}
    for item in sorted((item for item in maps if item.executable), key=lambda item: item.id):
        chosen = item.selection
        clashes: dict[str, list[str]] = {}
        for phase in chosen.phases:
            other = first.setdefault((chosen.equivalence_group, chosen.priority, phase), item.id)
            if other != item.id:
                clashes.setdefault(other, []).append(phase.value)
        for other, phases in clashes.items():
            message = f"priority {chosen.priority} equals that of {other!r} in {' and '.join(phases)}"
            place = sources[item.id].place("/selection/priority")
            found.append(Diagnostic("KM204", message, place=place, help="rank them: a tie can decide nothing"))
    return found


def lints(
    maps: Mapping[str, KernelMap],
    ladders: Mapping[str, tuple[KernelMap, ...]],
    groups: Iterable[str],
    certified: frozenset[str],
    routed: frozenset[str],
    sources: Mapping[str, JsonSource],
) -> list[Diagnostic]:
    """Warnings on a sound registry: what can never be chosen, what is chosen without proof."""
    found: list[Diagnostic] = []

    def warn(code: str, message: str, item: KernelMap, where: str, help: str) -> None:
        place = sources[item.id].place(where) if item.id in sources else None
        found.append(Diagnostic(code, message, Severity.WARNING, place=place, help=help))

    for item in maps.values():
        if not item.executable:
            continue
        status = item.selection.status
        if status in (Status.PRODUCTION, Status.CANDIDATE) and (winner := _shadow(item, ladders)):
            message = f"{item.id} can never be selected: {winner} ranks higher and is always eligible"
            warn("KM251", message, item, "/selection/priority", "raise its priority, or remove it")
        if status is Status.PRODUCTION and item.id not in certified:
            message = f"production without evidence: {item.id}"
            warn("KM253", message, item, "/selection/status", "certify it on this kind of host")
        if status is Status.CANDIDATE and item.id not in routed:
            message = f"no circuit routes candidate {item.id}"
            warn("KM254", message, item, "/selection/status", "fine for a candidate that is still being proved")
    for group in groups:
        ladder = ladders.get(group, ())
        if not any(item.selection.status is Status.PRODUCTION and item.executable for item in ladder):
            message = f"group {group} has no production provider"
            found.append(
                Diagnostic("KM252", message, Severity.WARNING, help="it resolves only by a route, or not at all")
            )
    return found


def _shadow(item: KernelMap, ladders: Mapping[str, tuple[KernelMap, ...]]) -> str:
    """Id of a higher provider that is eligible wherever this one is, in every phase; empty if there is none."""
    winners = []
    for phase in item.selection.phases:
        winner = next(
            (o.id for o in ladders[item.selection.equivalence_group] if _always(o, phase) and _above(o, item)), ""
        )
        winners.append(winner)
    return winners[0] if all(winners) else ""


def _above(other: KernelMap, item: KernelMap) -> bool:
    wherever = other.requires.device is Device.ANY or item.requires.device is Device.CPU
    return wherever and other.selection.priority > item.selection.priority


def _always(item: KernelMap, phase: Phase) -> bool:
    return (
        item.executable
        and item.selection.status is Status.PRODUCTION
        and phase in item.selection.phases
        and not item.requires.isa
        and item.requires.device in (Device.CPU, Device.ANY)
        and not item.constraints.dims
        and not item.weight_preparation
    )
