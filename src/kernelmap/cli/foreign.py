"""``import-cke`` and ``foreign``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, PROBLEM, Format, emit, emit_json, report
from kernelmap.cli.progress import bar
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.models.foreign_report import ForeignAudit
from kernelmap.models.kernel_map import KernelMap


def import_cke(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of C-Kernel-Engine's kernel maps.")],
    written: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Write foreign maps and report to this new folder.")
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="THEIRS=OURS", help="Show a foreign group's maps in one of ours (repeatable)."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every file, and every field not carried over.")] = False,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Read another engine's kernel maps as foreign maps: to audit, diff and explain, never to run.

    Exit 1 if a file could not be read; the others are imported all the same.
    """
    from kernelmap.foreign import cke, text, writing

    with bar("reading") as progress:
        found = cke.import_cke(folder, _groups(groups or ()), progress)
    if written is not None:
        writing.write_import(found, written)
    if output is Format.JSON:
        emit_json(found.report.model_dump(mode="json", by_alias=True, exclude={"schema_ref"}))
        return PROBLEM if found.problems else CLEAN
    code = report(found.problems)
    if output is Format.TEXT:
        emit(text.import_text(found.report, every=every))
        if written is not None:
            emit(f"wrote {written}; audit it with: kernelmap foreign {written}")
    return code


def _groups(words: list[str] | tuple[()]) -> dict[str, str]:
    """THEIRS=OURS words, against the contracts of the shipped registry."""
    contracts = options.registry_of(None).contracts if words else {}
    made: dict[str, str] = {}
    problems = []
    for word in words:
        theirs, sign, ours = word.rpartition("=")
        if not sign or not theirs:
            raise typer.BadParameter(f"THEIRS=OURS, not {word!r}", param_hint="--group")
        if ours not in contracts:
            near = nearest(ours, contracts)
            problems.append(Diagnostic("KM854", f"no contract here declares group {ours!r}", near=near))
        elif theirs in made:
            problems.append(Diagnostic("KM854", f"group {theirs!r} is given twice"))
        made[theirs] = ours
    if problems:
        raise KernelmapError(problems)
    return made


def foreign(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that import-cke wrote.")],
    since: Annotated[
        Path | None, typer.Option("--since", metavar="DIR", help="An earlier import: say what differs from it.")
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="PROFILE", help="A host profile by name or path (repeatable); else all."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="G", help="Explain one group, theirs or ours.")
    ] = None,
    provider: Annotated[str | None, typer.Option("--provider", metavar="ID", help="Explain one map's group.")] = None,
    candidates: Annotated[bool, typer.Option("--candidates", help="As if a route allowed every candidate.")] = False,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Say what imported maps would select by the rules here: ties, holes, mixed groups, and what changed."""
    from kernelmap.foreign.changes import foreign_changes
    from kernelmap.foreign.choices import audit_foreign, read_foreign
    from kernelmap.foreign.text import audit_text, changes_text
    from kernelmap.host import profile_names
    from kernelmap.render import render_github

    if group is not None and provider is not None:
        raise typer.BadParameter("either --group or --provider", param_hint="--provider")
    found = read_foreign(folder)
    machines = [options.host_of(name) for name in dict.fromkeys(hosts or profile_names())]
    audited = audit_foreign(found, machines, candidates_compete=candidates)
    made = audited.record
    if since is not None:
        old = read_foreign(since)
        before = audit_foreign(old, machines, candidates_compete=candidates).record
        made = made.model_copy(update={"changes": foreign_changes(before, made, old.registry, found.registry)})
    if (wanted := _wanted(found.registry.maps.values(), group, provider)) is not None:
        made = _only(made, wanted)
    if output is Format.JSON:
        emit_json(made.model_dump(mode="json", by_alias=True, exclude={"schema_ref"}))
    elif output is Format.GITHUB:
        emit(render_github(audited.findings) or "no finding")
    else:
        emit(changes_text(made) if since is not None else audit_text(made, ladders=wanted is not None))
    return CLEAN


def _only(made: ForeignAudit, group: str) -> ForeignAudit:
    """The ladders and findings of one group."""
    ladders = tuple(item for item in made.ladders if item.group == group)
    findings = tuple(item for item in made.findings if item.message.startswith((f"{group} ", f"{group}:")))
    return made.model_copy(update={"ladders": ladders, "findings": findings})


def _wanted(maps: Iterable[KernelMap], group: str | None, provider: str | None) -> str | None:
    """The group to show alone, by its name here or there, or by one of its maps; None for all."""
    names: dict[str, str] = {}
    for item in maps:
        about, own = item.foreign, item.selection.equivalence_group
        if about is not None:
            known = (own, about.equivalence_group) if provider is None else (item.id, about.id)
            names |= dict.fromkeys(known, own)
    word = provider if provider is not None else group
    if word is None or word in names:
        return names[word] if word is not None else None
    code, what = ("KM457", "provider") if provider is not None else ("KM451", "group")
    raise KernelmapError(Diagnostic(code, f"no imported {what} is called {word!r}", near=nearest(word, names)))
