"""``promote`` and ``demote``."""

from __future__ import annotations

import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, PROBLEM, Format, emit, emit_json, harmless, report
from kernelmap.errors import Diagnostic
from kernelmap.promotion import Change, apply, demotion, promotion
from kernelmap.render import to_json
from kernelmap.sources import shipped_maps
from kernelmap.vocabulary import Status

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The provider.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")]


def promote(
    id: IdArgument,
    bench: Annotated[
        Path | None, typer.Option("--bench", metavar="FILE", help="A record of kernelmap bench; else the kept one.")
    ] = None,
    yes: YesOption = False,
    dry_run: DryOption = False,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Put a candidate into production: only with a valid certificate and a benchmark against what is selected now."""
    return _carry_out(promotion(id, options.registry_of(maps), bench), yes, dry_run, output)


def demote(
    id: IdArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it becomes a caveat of the map.")],
    to: Annotated[
        str, typer.Option("--to", metavar="candidate|diagnostic|deprecated", help="The new status.")
    ] = Status.CANDIDATE.value,
    yes: YesOption = False,
    dry_run: DryOption = False,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Take a provider out of production, or a candidate further down."""
    if to not in (Status.CANDIDATE, Status.DIAGNOSTIC, Status.DEPRECATED):
        raise typer.BadParameter("one of candidate, diagnostic, deprecated", param_hint="--to")
    if not reason.strip() or len(reason) > 1500 or harmless(" ".join(reason.split())) != " ".join(reason.split()):
        raise typer.BadParameter("some words, at most 1500 characters, none of them control", param_hint="--reason")
    day = datetime.now(UTC).date().isoformat()
    change = demotion(id, options.registry_of(maps), Status(to), reason, day)
    return _carry_out(change, yes, dry_run, output)


def _carry_out(change: Change, yes: bool, dry_run: bool, output: Format) -> int:
    """Shows the change, then refuses it, asks, or writes it."""
    text = output is not Format.JSON
    if text and change.diff:
        emit(change.diff)
    refused = list(change.lacks)
    if not refused and not (dry_run or yes or (text and _confirmed(change))):
        message = f"{change.item.id} stays {change.item.selection.status.value}: not confirmed"
        refused = [Diagnostic("KM597", message, help="give --yes")]
    written = [] if refused or dry_run else apply(change)
    if not text:
        _emit_json(change, refused, [str(path) for path in written])
        return PROBLEM if refused else CLEAN
    if refused:
        return report([*refused, *change.notes])
    report(change.notes)
    what = f"{change.item.id}: {change.item.selection.status.value} -> {change.to.value}"
    emit(f"{what}\n" + "".join(f"wrote {path}\n" for path in written) if written else f"{what}: nothing was written")
    if written and Path(change.before.name).resolve().parent == shipped_maps().resolve():
        emit("\n".join(textwrap.wrap("docs/providers.md lists statuses: run make generate", 80)))
    return CLEAN


def _confirmed(change: Change) -> bool:
    if not sys.stdin.isatty():
        return False
    sys.stdout.flush()
    return typer.confirm(f"{change.item.id}: {change.item.selection.status.value} -> {change.to.value}?", err=True)


def _emit_json(change: Change, refused: list[Diagnostic], written: list[str]) -> None:
    emit_json(
        {
            "id": change.item.id,
            "from": change.item.selection.status.value,
            "to": change.to.value,
            "allowed": not change.lacks,
            "diff": change.diff,
            "written": written,
            "diagnostics": [to_json(item) for item in (*refused, *change.notes)],
        }
    )
