"""Imports and audits of foreign maps as plain text of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from kernelmap.foreign.changes import choice_text
from kernelmap.models.foreign_report import ForeignAudit, ForeignImport, ForeignLadder, ReadMap

_MOST = 8
"""Names that a summary lists of each kind; all of them stand in the report."""


def import_text(report: ForeignImport, *, every: bool = False) -> str:
    """Counts of every kind, and the fields that were not carried over: by how many maps have them, or map by map."""
    lines = [f"{report.engine}: {_count(report.files, 'JSON file')}"]
    for count, what, names in (
        (len(report.imported), "imported as foreign maps (not executable)", ()),
        (len(report.unselected), "without a selection block: never eligible", [m.file for m in report.unselected]),
        (
            len(report.registries),
            "no maps: registries, bindings and the like",
            [item.file for item in report.registries],
        ),
        (len(report.failed), "failed", [item.file for item in report.failed]),
        (len(report.skipped), "other entries, not read", report.skipped),
    ):
        lines.append(f"  {count:>5}  {what}")
        lines += _names(names, every)
    renamed = [f"{item.file} has id {item.foreign_id}" for item in _maps(report) if item.other_name]
    if renamed:
        lines.append(f"  {len(renamed):>5}  not named for their id")
        lines += _names(renamed, every)
    lines += ["", "not carried over:" if any(item.not_carried for item in _maps(report)) else "all was carried over"]
    lines += _by_map(report) if every else _by_field(report)
    return "\n".join(line.rstrip() for line in lines)


def _maps(report: ForeignImport) -> tuple[ReadMap, ...]:
    return (*report.imported, *report.unselected)


def _names(names: Sequence[str], every: bool) -> Iterator[str]:
    shown = names if every else names[:_MOST]
    for name in shown:
        yield f"           {_one_line(name)}"
    if len(names) > len(shown):
        yield f"           and {len(names) - len(shown)} more (--all)"


def _one_line(name: str) -> str:
    """The name of a file, which may hold line ends, on the one line that it is listed in."""
    return "".join(f"\\u{ord(char):04x}" if char in "\n\t\x85\u2028\u2029" else char for char in name)


def _by_field(report: ForeignImport) -> Iterator[str]:
    counts: dict[str, int] = {}
    for item in report.imported:
        for name in dict.fromkeys(_general(pointer) for pointer in item.not_carried):
            counts[name] = counts.get(name, 0) + 1
    for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"  {name:<50} in {_count(count, 'map')}"
    if report.unselected:
        yield f"  everything but id and op{'':<26} in {_count(len(report.unselected), 'map')} without selection"
    if counts or report.unselected:
        yield "each map with its JSON paths: --all, --format json, or the written report"


def _by_map(report: ForeignImport) -> Iterator[str]:
    for item in _maps(report):
        yield f"  {_one_line(item.file)}"
        text = " ".join(item.not_carried) or "nothing"
        yield from textwrap.wrap(text, 80, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
                                 break_on_hyphens=False)  # fmt: skip


def _general(pointer: str) -> str:
    """A pointer with ``*`` for places in lists, so that maps can be counted together."""
    return "/".join("*" if part.isdigit() else part for part in pointer.split("/"))


def audit_text(audit: ForeignAudit, *, ladders: bool = False) -> str:
    """The choice of every group and phase; with ``ladders`` each map with its reasons too."""
    head = f"{audit.engine}: {_count(audit.maps, 'foreign map')}, not executable; on {', '.join(audit.hosts)}"
    lines = [
        *_wrapped(head, ""),
        "what its maps come to by the rules here"
        + (", candidates competing" if audit.candidates_compete else ", no candidate routed"),
    ]
    for (group, phase), items in _by_group(audit.ladders).items():
        lines += ["", f"{group}  {phase}"]
        for choice, hosts in _by_choice(items).items():
            on = "" if len(hosts) == len(audit.hosts) else f"  on {', '.join(hosts)}"
            lines += _wrapped(f"-> {choice}{on}", "  ")
        if ladders:
            for item in items:
                lines += _ladder(item, len(items) > 1)
    if not audit.ladders:
        lines += ["", "no group has a map"]
    if audit.unselected:
        lines += ["", f"{_count(len(audit.unselected), 'map')} without a selection block: never eligible"]
    for finding in audit.findings:
        lines.append("")
        lines += _wrapped(f"{finding.severity}[{finding.code}]: {finding.message}", "")
    return "\n".join(lines)


def _by_group(ladders: Iterable[ForeignLadder]) -> dict[tuple[str, str], list[ForeignLadder]]:
    found: dict[tuple[str, str], list[ForeignLadder]] = {}
    for item in ladders:
        found.setdefault((item.group, item.phase.value), []).append(item)
    return found


def _by_choice(items: Iterable[ForeignLadder]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in items:
        limits = next((c.limits for c in item.candidates if c.selected), ())
        text = choice_text(item) + (f"  if {' and '.join(limits)}" if limits else "")
        found.setdefault(text, []).append(item.host)
    return found


def _ladder(item: ForeignLadder, name_host: bool) -> Iterator[str]:
    if name_host:
        yield f"  on {item.host}"
    for row in item.candidates:
        mark = "*" if row.selected else " "
        yield f"  {mark} {row.priority:>7} {row.status.value:<10} {row.id}"
        why = "; ".join(f"{reason.code} {reason.message}" for reason in row.reasons)
        limits = f"if {' and '.join(row.limits)}" if row.limits else ""
        yield from _wrapped("; ".join(text for text in (why, limits) if text), " " * 14)


def changes_text(audit: ForeignAudit) -> str:
    """One block for each difference from an earlier import."""
    if not audit.changes:
        return "no change"
    lines = []
    for item in audit.changes:
        lines += _wrapped(f"{item.kind}: {item.what}", "")
        if item.kind == "choice changed":
            lines += [f"  - {item.before}", f"  + {item.after}"]
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> list[str]:
    """Lines of 80 columns; a name that is longer stays whole."""
    further = indent + ("   " if text.startswith("->") else "" if indent else "  ")
    return textwrap.wrap(
        text, 80, initial_indent=indent, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
