"""``check`` and ``new provider``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelmap.check import Checked, check_all, check_paths
from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, Format, emit, emit_json, report
from kernelmap.errors import Severity
from kernelmap.scaffold import new_provider as scaffold_provider


def check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files or folders; without any, all that is shipped.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings too.")] = False,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.CheckFormatOption = Format.TEXT,
) -> int:
    """Check maps, contracts, circuits and other files; report every problem with its place."""
    folders = (tuple(maps or ()), tuple(circuits or ()))
    checked = check_paths(paths, *folders) if paths else check_all(*folders)
    code = report(checked.problems, strict=strict)
    if output is Format.TEXT:
        emit(_summary(checked))
    return code


def _summary(checked: Checked) -> str:
    parts = [
        f"{count} {name}{'' if count == 1 else 's'}"
        for count, name in (
            (checked.maps, "map"),
            (checked.contracts, "contract"),
            (checked.circuits, "circuit"),
            (checked.others, "other file"),
        )
        if count
    ]
    errors = sum(item.severity is Severity.ERROR for item in checked.problems)
    warnings = sum(item.severity is Severity.WARNING for item in checked.problems)
    return (
        f"checked {', '.join(parts) or 'nothing'}: {errors} error{'' if errors == 1 else 's'}, "
        f"{warnings} warning{'' if warnings == 1 else 's'}"
    )


def new_provider(
    id: Annotated[str, typer.Argument(help="Id of the new provider: lower case, digits, underscores.")],
    group: Annotated[str, typer.Option("--group", metavar="G", help="Its equivalence group.")],
    package: Annotated[
        str | None, typer.Option("--package", metavar="NAME", help="A registered provider package for the code.")
    ] = None,
    into: Annotated[Path | None, typer.Option("--into", metavar="DIR", help="The folder for the map.")] = None,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Scaffold a candidate map and a provider file that pass check."""
    made = scaffold_provider(id, group, options.registry_of(maps), package=package, maps=into)
    if output is Format.JSON:
        emit_json({"map": str(made.map_path), "provider": str(made.provider_path)})
    else:
        emit(f"wrote {made.map_path}\nwrote {made.provider_path}\ncheck it with: kernelmap check {made.map_path}")
    return CLEAN
