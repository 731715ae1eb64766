"""Promotion and demotion of providers: what a change of status lacks, its diff, and the files that it writes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path

from kernelmap.bench.ratios import LEAST_ROUNDS, MOST_NOISE
from kernelmap.bench.record import case_text, of_group, ratio_in, read_record, record_text
from kernelmap.errors import Diagnostic, KernelmapError, Place, Severity, nearest
from kernelmap.files import write_whole
from kernelmap.host import probe_host
from kernelmap.json_edit import with_appended, with_value, without_item
from kernelmap.jsonsource import JsonSource, read_json
from kernelmap.models.bench import BenchCase, BenchRecord
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.registry import Registry
from kernelmap.schema_files import schema_path
from kernelmap.source_digests import map_source_digest
from kernelmap.sources import shipped_maps
from kernelmap.staleness import staleness
from kernelmap.toolchain import toolchain, toolchain_gap
from kernelmap.vocabulary import Phase, Status

FOLDER = "benchmarks"
"""The folder, beside the maps, of the records that allowed promotions."""
_STATUS = "/selection/status"
_DOWN = (Status.PRODUCTION, Status.CANDIDATE, Status.DIAGNOSTIC, Status.DEPRECATED)
_STOCK = "candidate:"
"""How a caveat begins that is about being a candidate; it would be untrue after a promotion."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of status: whether it is allowed, and what it writes."""

    item: KernelMap
    to: Status
    before: JsonSource
    after: JsonSource
    lacks: tuple[Diagnostic, ...]
    """What forbids it; empty if it is allowed."""
    notes: tuple[Diagnostic, ...] = ()
    """What it leads to, where that may be unexpected."""
    record: BenchRecord | None = None
    """The benchmark that allows it, cut to the group."""

    @property
    def diff(self) -> str:
        """The change of the map as a unified diff."""
        name = Path(self.before.name).name
        old, new = self.before.text.splitlines(keepends=True), self.after.text.splitlines(keepends=True)
        lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def promotion(name: str, registry: Registry, bench: Path | None = None) -> Change:
    """The promotion of a candidate to production, with all that it lacks.

    ``bench`` is a bench record; without it, the record that is kept for the provider. Raises KernelmapError for an
    unknown provider or an unreadable record.
    """
    item, source = _item(name, registry)
    place = source.place(_STATUS)
    if item.selection.status is not Status.CANDIDATE or not item.executable:
        what = "foreign" if not item.executable else item.selection.status.value
        message = f"{name} is {what}; only a candidate is promoted"
        lacks: tuple[Diagnostic, ...] = (Diagnostic("KM590", message, place=place),)
        return Change(item, Status.PRODUCTION, source, source, lacks)
    record = _record(source, name, bench)
    found = [*_certificate_lacks(item, registry, record, place), *_bench_lacks(item, registry, record, place)]
    after = with_value(source, _STATUS, Status.PRODUCTION.value)
    for index in reversed(range(len(item.caveats))):
        if item.caveats[index].startswith(_STOCK):
            after = without_item(after, "caveats", index)
    validate(after, KernelMap)
    notes = tuple(_outranked(item, registry, place))
    kept = of_group(record, item.selection.equivalence_group) if record is not None else None
    return Change(item, Status.PRODUCTION, source, after, tuple(found), notes, kept)


def demotion(name: str, registry: Registry, to: Status, reason: str, day: str) -> Change:
    """The demotion of a provider to a lower status; ``reason`` and ``day`` become a caveat of the map.

    Raises KernelmapError for an unknown provider.
    """
    item, source = _item(name, registry)
    now = item.selection.status
    lacks: tuple[Diagnostic, ...] = ()
    if _DOWN.index(to) <= _DOWN.index(now):
        message = f"{name} is {now.value}; a demotion to {to.value} is no step down"
        lacks = (Diagnostic("KM590", message, place=source.place(_STATUS)),)
        return Change(item, to, source, source, lacks)
    after = with_value(source, _STATUS, to.value)
    after = with_appended(after, "caveats", f"demoted from {now.value} on {day}: {' '.join(reason.split())}")
    validate(after, KernelMap)
    notes = tuple(_left(item, registry, source)) if now is Status.PRODUCTION else ()
    return Change(item, to, source, after, lacks, notes)


def apply(change: Change) -> list[Path]:
    """Writes a change that lacks nothing: the map, and the benchmark that allows it. Returns the files.

    Raises KernelmapError if a file cannot be written; then all are as they were.
    """
    if change.lacks:
        raise KernelmapError(change.lacks)
    path = Path(change.before.name).resolve()
    _demand_same(change)
    if change.record is None:
        write_whole(change.after.text, path)
        return [path]
    kept = _kept(change.before, change.item.id)
    schema = relpath(schema_path("bench"), kept.parent) if path.parent == shipped_maps().resolve() else None
    old = kept.read_text(encoding="utf-8") if kept.is_file() else None
    try:
        kept.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise KernelmapError(Diagnostic("KM598", f"cannot make {kept.parent}: {error.strerror or error}")) from None
    write_whole(record_text(change.record, schema), kept)
    try:
        write_whole(change.after.text, path)
    except BaseException:
        if old is None:
            kept.unlink(missing_ok=True)
        else:
            write_whole(old, kept)
        raise
    return [path, kept]


def _demand_same(change: Change) -> None:
    """Refuses to write over what came since the map was read: a question may stand open for long."""
    now = read_json(Path(change.before.name))
    if now.text != change.before.text:
        message = f"the map of {change.item.id} was changed meanwhile; nothing was written"
        raise KernelmapError(Diagnostic("KM599", message, place=Place(change.before.name)))


def _item(name: str, registry: Registry) -> tuple[KernelMap, JsonSource]:
    item = registry.maps.get(name)
    if item is None:
        near = nearest(name, registry.maps)
        raise KernelmapError(Diagnostic("KM457", f"no provider is called {name!r}", near=near))
    return item, registry.sources[name]


def _kept(source: JsonSource, name: str) -> Path:
    """Where the record that allowed a promotion is kept."""
    return Path(source.name).resolve().parent / FOLDER / f"{name}.json"


def _record(source: JsonSource, name: str, bench: Path | None) -> BenchRecord | None:
    if bench is not None:
        return read_record(bench)
    kept = _kept(source, name)
    return read_record(kept) if kept.is_file() else None


# What a certificate lacks


def _certificate_lacks(
    item: KernelMap, registry: Registry, record: BenchRecord | None, place: Place
) -> Iterator[Diagnostic]:  # fmt: skip
    proof = registry.evidence.get(item.id)
    why = list(staleness(item, registry, proof))
    if proof is not None:
        if gap := toolchain_gap(item.impl.backend, proof.toolchain, toolchain()):
            why.append(f"the toolchain changed ({gap})")
        if record is not None and record.host.path not in proof.isa_paths:
            why.append(f"its certificate ran on {', '.join(proof.isa_paths)}, and was timed on {record.host.path}")
    for text in why:
        help = f"kernelmap certify {item.id}"
        yield Diagnostic("KM591", f"{item.id} is not certified: {text}", place=place, help=help)


# What a benchmark lacks


def _bench_lacks(
    item: KernelMap, registry: Registry, record: BenchRecord | None, place: Place
) -> Iterator[Diagnostic]:  # fmt: skip
    help = f"kernelmap bench {item.selection.equivalence_group} --output FILE"
    if record is None:
        yield Diagnostic("KM592", f"{item.id} has no benchmark", place=place, help=f"{help}, then --bench FILE")
        return
    cases = [case for case in record.cases if case.group == item.selection.equivalence_group]
    yield from _refusals(item, cases, place)
    timed = [case for case in cases if case.of(item.id) is not None]
    for phase in item.selection.phases:
        if phase is not Phase.INIT and not any(case.phase is phase for case in timed):
            message = f"the benchmark does not time {item.id} in {phase.value}"
            yield Diagnostic("KM592", message, place=place, help=help)
    rivals = [(case, name) for case in timed for name in _rivals(item, case, record, registry)]
    yield from _stale(item, registry, record, {item.id, *(name for _, name in rivals)} if timed else set(), place)
    for case, name in rivals:
        yield from _against(item, name, case, place, help)


def _refusals(item: KernelMap, cases: list[BenchCase], place: Place) -> Iterator[Diagnostic]:
    for text in dict.fromkeys(case.refused[item.id] for case in cases if item.id in case.refused):
        yield Diagnostic("KM582", f"the benchmark could not time {item.id}: {text}", place=place)


def _rivals(item: KernelMap, case: BenchCase, record: BenchRecord, registry: Registry) -> list[str]:
    """Who would be selected in a case without the candidate: what was then, and the first production provider now."""
    found = [case.incumbent] if case.incumbent not in (None, item.id) else []
    # A record of a narrower profile must not hide what this machine would lose.
    isa = {*record.host.isa, *probe_host().isa}
    for other in registry.ladders[item.selection.equivalence_group]:
        if other.id != item.id and _serves(other, case, isa):
            found.append(other.id)
            break
    return list(dict.fromkeys(name for name in found if name is not None))


def _serves(other: KernelMap, case: BenchCase, isa: set[str]) -> bool:
    return (
        other.executable
        and other.selection.status is Status.PRODUCTION
        and case.phase in other.selection.phases
        and set(other.requires.isa) <= isa
        and not any(limit.refusal(name, case.dims[name]) for name, limit in other.constraints.dims.items())
    )


def _against(item: KernelMap, name: str, case: BenchCase, place: Place, help: str) -> Iterator[Diagnostic]:
    between = ratio_in(case, item.id, name)
    if between is None:
        message = f"the benchmark does not time {name}, which is selected now, at {case_text(case)}"
        yield Diagnostic("KM592", message, place=place, help=help)
        return
    rounds = len(case.times[0].seconds)
    if between.slower:
        message = f"{item.id} takes {between} times as long as {name} at {case_text(case)}"
        yield Diagnostic("KM594", message, place=place)
    elif between.unsure:
        message = f"{between} times as long as {name} at {case_text(case)}: the noise could hide a loss of a tenth"
        limit = f"the interval ends at {1 + MOST_NOISE:.2f} or below"
        yield Diagnostic("KM595", message, place=place, expected=limit, help=f"{help} --rounds {max(31, 2 * rounds)}")
    elif rounds < LEAST_ROUNDS:
        message = f"{rounds} rounds at {case_text(case)} are too few to tell from noise"
        yield Diagnostic("KM595", message, place=place, expected=f"{LEAST_ROUNDS} rounds or more", help=help)


def _stale(
    item: KernelMap, registry: Registry, record: BenchRecord, names: set[str], place: Place
) -> Iterator[Diagnostic]:  # fmt: skip
    group = item.selection.equivalence_group
    why = []
    if names and record.contracts.get(group) != registry.contracts[group].digest:
        why.append("the contract changed since")
    for name in sorted(names & set(record.providers)):
        then, now = record.providers[name], registry.maps.get(name)
        if now is None:
            why.append(f"{name} is gone since")
            continue
        if then.map_digest != now.proved_digest:
            why.append(f"the map of {name} changed since")
        if then.source_digest != map_source_digest(now):
            why.append(f"the source of {name} changed since")
    for name in sorted(names & set(registry.maps)):
        switches = {variant.kill_switch for variant in registry.maps[name].impl.variants}
        why += [f"{word} kept {name} from a variant" for word in record.policy.kill_switches if word in switches]
    if names and (gap := toolchain_gap(item.impl.backend, record.toolchain, toolchain())):
        why.append(f"the toolchain changed ({gap}) since")
    for text in why:
        message = f"the benchmark of {record.made} does not hold: {text}"
        yield Diagnostic("KM593", message, place=place, help=f"kernelmap bench {group} --output FILE")


# What follows


def _outranked(item: KernelMap, registry: Registry, place: Place) -> Iterator[Diagnostic]:
    for phase, name in _first(item, registry).items():
        if name is not None and registry.maps[name].selection.priority > item.selection.priority:
            message = f"{item.id} ranks below {name}: in {phase.value} it is selected only where that is not eligible"
            yield Diagnostic("KM251", message, Severity.WARNING, place=place)


def _left(item: KernelMap, registry: Registry, source: JsonSource) -> Iterator[Diagnostic]:
    for phase, name in _first(item, registry).items():
        if name is None:
            message = f"{item.selection.equivalence_group} has no other production provider in {phase.value}"
            help = "ops that ask for it resolve only by a route"
            yield Diagnostic("KM252", message, Severity.WARNING, place=source.place(_STATUS), help=help)


def _first(item: KernelMap, registry: Registry) -> Mapping[Phase, str | None]:
    """The highest other production provider of the group, whatever the host, in each phase of a map."""
    others = [o for o in registry.ladders[item.selection.equivalence_group] if o.id != item.id and o.executable]
    production = [other for other in others if other.selection.status is Status.PRODUCTION]
    return {
        phase: next((o.id for o in production if phase in o.selection.phases), None) for phase in item.selection.phases
    }
