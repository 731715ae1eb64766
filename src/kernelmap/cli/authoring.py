"""``check`` and ``new``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from kernelmap.check import Checked, check_all, check_paths
from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, Format, emit, emit_json, report
from kernelmap.errors import Severity

PackageOption = Annotated[
    str | None,
    typer.Option(
        "--package", metavar="NAME", help="The registered provider package that takes the files; else kernelmap's own."
    ),
]


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
    package: PackageOption = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="The folder for the map; else the package's.")
    ] = None,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Scaffold a candidate map and a provider file that pass check."""
    from kernelmap.scaffold import new_provider as scaffold

    made = scaffold(id, group, options.registry_of(maps), package=package, maps=into)
    return _wrote({"map": made.map_path, "provider": made.provider_path}, output)


def new_contract(
    group: Annotated[str, typer.Argument(help="The new equivalence group: lower case, digits, underscores.")],
    op: Annotated[str | None, typer.Option("--op", metavar="OP", help="The operation; else the group's name.")] = None,
    package: PackageOption = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="The folder of maps for it; else the package's.")
    ] = None,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Scaffold a contract and its oracle, ready for providers."""
    from kernelmap.scaffold import new_contract as scaffold

    made = scaffold(group, options.registry_of(maps), op=op, package=package, maps=into)
    return _wrote({"contract": made.contract_path, "oracle": made.oracle_path}, output)


def new_circuit(
    id: Annotated[str, typer.Argument(help="Id of the new circuit: lower case, digits, underscores.")],
    group: Annotated[str, typer.Option("--group", metavar="G", help="The equivalence group of its first op.")],
    package: PackageOption = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="The folder for the circuit; else the package's.")
    ] = None,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Scaffold a circuit of one op, with made-up storage that elaborates."""
    from kernelmap.scaffold import new_circuit as scaffold

    made = scaffold(id, group, options.registry_of(maps), package=package, circuits=into)
    return _wrote({"circuit": made}, output)


def _wrote(files: Mapping[str, Path], output: Format) -> int:
    """Says what was written; the first file is the one to check."""
    if output is Format.JSON:
        emit_json({name: str(path) for name, path in files.items()})
    else:
        emit("\n".join(f"wrote {path}" for path in files.values()))
        emit(f"check it with: kernelmap check {next(iter(files.values()))}")
    return CLEAN
