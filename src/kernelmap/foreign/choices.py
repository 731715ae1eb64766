"""What a foreign registry would choose by the rules here: the highest eligible map of each group, phase and host.

These are the resolver's rules without a circuit: status, phase, ISA and rank. Limits on dims are shown beside a choice,
since only a circuit has dims. Whether the other engine chooses so is its own affair; that its maps leave a choice open
(a tie), or none (a hole), is a fact about the maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError, Place, Severity, errors_in
from kernelmap.foreign.cke_map import ENGINE
from kernelmap.foreign.writing import REPORT
from kernelmap.jsonsource import read_json
from kernelmap.models.audit import AuditFinding
from kernelmap.models.foreign import Foreign, ForeignVariant
from kernelmap.models.foreign_report import ForeignAudit, ForeignCandidate, ForeignImport, ForeignLadder
from kernelmap.models.host import Host
from kernelmap.models.kernel_map import DimConstraint, KernelMap
from kernelmap.models.loading import validate
from kernelmap.models.plan import Reason
from kernelmap.registry import Registry, read_registry
from kernelmap.render import to_json
from kernelmap.vocabulary import Phase, Status

PHASES = (Phase.INIT, Phase.PREFILL, Phase.DECODE)


@dataclass(frozen=True, slots=True)
class ForeignFolder:
    """An import as it was written: its foreign maps, and its report if there is one."""

    registry: Registry
    report: ForeignImport | None


def read_foreign(folder: Path) -> ForeignFolder:
    """The foreign maps of a folder and the report of their import.

    Raises KernelmapError with every problem of every file, and KM855 if there is neither a foreign map nor a report.
    """
    loaded = read_registry((folder,), shipped=False)
    if errors := errors_in(loaded.problems):
        raise KernelmapError(errors)
    path = folder / REPORT
    report = validate(read_json(path), ForeignImport) if path.is_file() else None
    if report is None and all(item.executable for item in loaded.registry.maps.values()):
        raise KernelmapError(Diagnostic("KM855", f"no foreign map in {folder}", place=Place(str(folder))))
    return ForeignFolder(loaded.registry, report)


@dataclass(frozen=True, slots=True)
class AuditedForeign:
    """The record, and its findings as diagnostics."""

    record: ForeignAudit
    findings: tuple[Diagnostic, ...]


def audit_foreign(found: ForeignFolder, hosts: Sequence[Host], *, candidates_compete: bool = False) -> AuditedForeign:
    """The choice of every foreign group in every phase on every host, and what is doubtful about the maps.

    ``candidates_compete`` asks as if a route allowed every candidate.
    """
    maps = [item for item in found.registry.maps.values() if item.foreign is not None]
    groups: dict[str, list[KernelMap]] = {}
    for item in maps:
        groups.setdefault(item.selection.equivalence_group, []).append(item)
    ladders = tuple(
        _ladder(group, phase, host, members, candidates_compete)
        for group, members in sorted(groups.items())
        for phase in PHASES
        if any(phase in item.selection.phases for item in members)
        for host in hosts
    )
    problems = [*_open(ladders, found.registry), *_several(groups, found.registry)]
    values = [to_json(item) for item in problems]
    unselected = found.report.unselected if found.report is not None else ()
    record = ForeignAudit(
        engine=found.report.engine if found.report is not None else ENGINE,
        hosts=tuple(host.name for host in hosts),
        maps=len(maps),
        unselected=tuple(item.foreign_id for item in unselected),
        candidates_compete=candidates_compete,
        ladders=ladders,
        findings=tuple(AuditFinding.model_validate({**value, "near": tuple(value["near"])}) for value in values),
    )
    return AuditedForeign(record, tuple(problems))


def _ladder(group: str, phase: Phase, host: Host, members: Iterable[KernelMap], compete: bool) -> ForeignLadder:
    ranked = sorted(members, key=lambda item: (-item.selection.priority, item.id))
    rows = [(item, list(_reasons(item, phase, host, compete))) for item in ranked]
    eligible = [item for item, why in rows if not why]
    top = [item.id for item in eligible if item.selection.priority == eligible[0].selection.priority]
    made = []
    for item, why in rows:
        selected = top == [item.id]
        if not why and item.id not in top:
            why.append(_reason("KM413", "rank", f"outranked by {' and '.join(top)}"))
        made.append(ForeignCandidate(
            id=item.id, status=item.selection.status, priority=item.selection.priority, selected=selected,
            reasons=tuple(why), limits=_limits(item),
        ))  # fmt: skip
    return ForeignLadder(
        group=group, phase=phase, host=host.name, providers=tuple(top), candidates=tuple(made),
        outcome="hole" if not top else "provider" if len(top) == 1 else "tie",
    )  # fmt: skip


def _reasons(item: KernelMap, phase: Phase, host: Host, compete: bool) -> Iterator[Reason]:
    """Why a map is not eligible, in the order and with the codes of the resolver's checks."""
    status, features = item.selection.status, frozenset(host.isa)
    if status is Status.CANDIDATE and not compete:
        yield _reason("KM401", "status", "a candidate; no route allows it")
    elif status is Status.DIAGNOSTIC:
        yield _reason("KM403", "status", "diagnostic: run by name only")
    elif status is Status.DEPRECATED:
        yield _reason("KM404", "status", "deprecated")
    if phase not in item.selection.phases:
        yield _reason("KM402", "phase", f"not for {phase.value}")
    about = item.foreign
    missing = [feature for feature in item.requires.isa if feature not in features]
    unknown = [f"{need} (unknown here)" for need in about.unknown_needs] if about is not None else []
    if missing or unknown:
        yield _reason("KM405", "isa", f"host lacks {', '.join([*missing, *unknown])}")
    variants = about.variants if about is not None else ()
    if variants and not any(_runs(variant, features) for variant in variants):
        names = ", ".join(variant.name for variant in variants)
        yield _reason("KM405", "isa", f"none of its variants runs on the host: {names}")


def _runs(variant: ForeignVariant, features: frozenset[str]) -> bool:
    return not variant.unknown_needs and features.issuperset(variant.isa)


def _reason(code: str, check: str, message: str) -> Reason:
    return Reason(code=code, check=check, message=message)


def _limits(item: KernelMap) -> tuple[str, ...]:
    read = [text for name, limit in sorted(item.constraints.dims.items()) for text in _texts(name, limit)]
    unread = item.foreign.unread_constraints if item.foreign is not None else ()
    return (*read, *(f"{name} (not read)" for name in unread))


def _texts(name: str, limit: DimConstraint) -> Iterator[str]:
    if limit.min is not None:
        yield f"{name} >= {limit.min}"
    if limit.max is not None:
        yield f"{name} <= {limit.max}"
    if limit.multiple_of is not None:
        yield f"{name} % {limit.multiple_of} == 0"


def _open(ladders: Iterable[ForeignLadder], registry: Registry) -> Iterator[Diagnostic]:
    """Ties and holes, each once for all hosts on which it is the same."""
    spots: dict[tuple[str, Phase, tuple[str, ...]], tuple[list[str], ForeignLadder]] = {}
    for item in ladders:
        if item.outcome != "provider":
            spots.setdefault((item.group, item.phase, item.providers), ([], item))[0].append(item.host)
    for (group, phase, tied), (hosts, item) in spots.items():
        about = registry.maps[tied[0] if tied else item.candidates[0].id]
        source = registry.sources[about.id]
        where = f"{group} ({phase.value}) on {', '.join(hosts)}"
        if tied:
            message = f"{where}: {' and '.join(tied)} tie at priority {about.selection.priority}"
            yield Diagnostic("KM860", message, Severity.WARNING, place=source.place("/selection/priority"))
        else:
            lines = (f"{c.id}: {'; '.join(f'{r.code} {r.message}' for r in c.reasons)}" for c in item.candidates)
            place = source.place("/selection/equivalence_group")
            yield Diagnostic("KM861", f"{where}: no map is eligible", Severity.NOTE, place=place, help="\n".join(lines))


def _several(groups: dict[str, list[KernelMap]], registry: Registry) -> Iterator[Diagnostic]:
    """Groups whose maps do not say the same of what they compute."""
    for group, members in sorted(groups.items()):
        first = members[0]
        for other in members[1:]:
            assert first.foreign is not None and other.foreign is not None
            if differing := _differing(first.foreign, other.foreign):
                message = f"{group}: {first.id} and {other.id} differ in {' and '.join(differing)}"
                place = registry.sources[other.id].place("/foreign")
                yield Diagnostic("KM862", message, Severity.WARNING, place=place)


def _differing(one: Foreign, other: Foreign) -> list[str]:
    """What two maps of a group say otherwise; what one of them does not say at all is no difference."""
    found = []
    if one.numerical_contract and other.numerical_contract and one.numerical_contract != other.numerical_contract:
        found.append(f"numerical contract ({one.numerical_contract}, {other.numerical_contract})")
    shared = one.formats.keys() & other.formats.keys()
    if names := sorted(name for name in shared if one.formats[name] != other.formats[name]):
        found.append("format of " + ", ".join(f"{name} ({one.formats[name]}, {other.formats[name]})" for name in names))
    mine, theirs = ({(p.role, p.name): p.dtype for p in about.ports} for about in (one, other))
    if both := sorted(key for key in mine.keys() & theirs.keys() if mine[key] != theirs[key]):
        found.append(
            "dtype of " + ", ".join(f"{name} ({mine[role, name]}, {theirs[role, name]})" for role, name in both)
        )
    return found
