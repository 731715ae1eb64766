"""Audits as text and as Markdown: renderings of the one record."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from kernelmap.models.audit import Audit, AuditFinding
from kernelmap.resolver import STEPS
from kernelmap.rules import CATALOGUE

WIDTH = 80
_LEGEND = "decided/ops of each phase; single: ops with one eligible provider only"


def audit_text(record: Audit) -> str:
    """The coverage matrix, every finding by rule, and a count, in 80 columns."""
    rows = [("circuit", "host", *(phase.value for phase in STEPS)), *_matrix(record)]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(f"({_LEGEND})")
    for code, findings in _by_code(record):
        lines += ["", f"{code} {CATALOGUE[code].title}"]
        for item in findings:
            lines += _wrapped(f"  {item.severity}: " if item.severity != "note" else "  ", item.message)
            for part in (item.help or "").splitlines():
                lines += _wrapped("      ", part)
    return "\n".join([*lines, "", summary(record)])


def summary(record: Audit) -> str:
    """``76 maps, 1 circuit, 4 hosts: 0 errors, 2 warnings, 5 notes``."""
    counts = [(len(record.circuits), "circuit"), (len(record.hosts), "host")]
    severities = [item.severity for item in record.findings]
    found = [(severities.count("error"), "error"), (severities.count("warning"), "warning")]
    found.append((severities.count("note"), "note"))
    audited, said = (", ".join(f"{n} {name}{'' if n == 1 else 's'}" for n, name in part) for part in (counts, found))
    return f"{record.maps} maps, {audited}: {said}"


def audit_markdown(record: Audit) -> str:
    """The coverage matrix and a table of findings for each rule."""
    lines = ["### Coverage", "", f"| circuit | host | {' | '.join(phase.value for phase in STEPS)} |"]
    lines.append("|" + "---|" * (2 + len(STEPS)))
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in _matrix(record)]
    lines += ["", _LEGEND]
    for code, findings in _by_code(record):
        lines += ["", f"### {code} {CATALOGUE[code].title}", "", "| severity | finding | help |", "|---|---|---|"]
        lines += [f"| {item.severity} | {_cell(item.message)} | {_cell(item.help or '')} |" for item in findings]
    return "\n".join([*lines, "", summary(record)])


def _matrix(record: Audit) -> Iterator[tuple[str, ...]]:
    cells = {(cell.circuit, cell.host, cell.phase): cell for cell in record.cells}
    for circuit in record.circuits:
        for host in record.hosts:
            yield circuit, host, *(cells[circuit, host, phase].text for phase in STEPS)


def _by_code(record: Audit) -> Iterable[tuple[str, list[AuditFinding]]]:
    found: dict[str, list[AuditFinding]] = {}
    for item in record.findings:
        found.setdefault(item.code, []).append(item)
    return found.items()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def _wrapped(lead: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=lead, subsequent_indent="    " if len(lead) < 6 else " " * len(lead),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
