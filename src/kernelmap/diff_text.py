"""Diffs as text and as Markdown: renderings of the one record."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator

from kernelmap.models.diff import Change, Diff

WIDTH = 80
_DIGEST = "sha256:"


def diff_text(diff: Diff) -> str:
    """The changes class by class, each with what was and what is, in 80 columns."""
    lines: list[str] = []
    kind = None
    for change in diff.changes:
        if change.kind is not kind:
            lines += ["", change.kind.value] if lines else [change.kind.value]
            kind = change.kind
        lines += _change(change)
    return "\n".join([*lines, "", summary(diff)] if lines else [summary(diff)])


def summary(diff: Diff) -> str:
    """``3 changes: 1 map changed, 2 source changed``."""
    if not diff.changes:
        return "no change"
    counts = Counter(change.kind.value for change in diff.changes)
    total = len(diff.changes)
    parts = ", ".join(f"{count} {name}" for name, count in counts.items())
    return textwrap.fill(f"{total} change{'' if total == 1 else 's'}: {parts}", WIDTH, subsequent_indent="  ")


def diff_markdown(diff: Diff) -> str:
    """A table a class, with a heading that names both sides."""
    lines = [f"### {_cell(diff.before)} → {_cell(diff.after)}", "", summary(diff).replace("\n", "")]
    kind = None
    for change in diff.changes:
        if change.kind is not kind:
            kind = change.kind
            lines += ["", f"**{kind.value}**", "", "| what | before | after |", "|---|---|---|"]
        what = " ".join(part for part in (change.subject, change.where) if part)
        lines.append(f"| {_cell(what)} | {_cell(change.before)} | {_cell(change.after)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _change(change: Change) -> Iterator[str]:
    what = " ".join(part for part in (change.subject, change.where) if part)
    if change.before.startswith(_DIGEST) and change.after.startswith(_DIGEST):
        yield from _wrapped("  ", f"{what}  {_short(change.before)} to {_short(change.after)}")
        return
    yield from _wrapped("  ", what)
    for sign, text in (("-", change.before), ("+", change.after)):
        if text:
            yield from _wrapped(f"    {sign} ", text)


def _short(digest: str) -> str:
    return digest.removeprefix(_DIGEST)[:12]


def _wrapped(lead: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead), break_long_words=False,
        break_on_hyphens=False,
    ) or [lead.rstrip()]  # fmt: skip
