"""``certify``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, PROBLEM, Format, emit, emit_json
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.jsonsource import read_json
from kernelmap.map_checks import not_executable
from kernelmap.models.evidence import Evidence
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.registry import Registry
from kernelmap.vocabulary import Status


def certify(
    ids: Annotated[list[str] | None, typer.Argument(help="Providers; without any, all in production.")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="G", help="Every provider of a group.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say which certificates are stale, and why.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="DIR", help="Where evidence is written or checked; else evidence/ beside each map."
        ),
    ] = None,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Prove providers: run each over a generated corpus of its contract and write its certificate."""
    registry = options.registry_of(maps)
    chosen = _chosen(registry, ids, group)
    if check:
        proofs = registry.evidence if into is None else _proofs(chosen, into)
        return _check(chosen, registry, proofs, output)
    return _certify(chosen, registry, _folders(chosen, registry, into), output)


def _folders(chosen: list[KernelMap], registry: Registry, into: Path | None) -> dict[str, Path]:
    """Where the evidence of each provider goes: a certificate that lies beside other maps is of an unknown provider."""
    if into is not None:
        if not into.is_dir():
            raise KernelmapError(Diagnostic("KM562", f"no such folder: {into}"))
        return dict.fromkeys((item.id for item in chosen), into)
    found = {item.id: Path(registry.sources[item.id].name).parent / "evidence" for item in chosen}
    for folder in dict.fromkeys(found.values()):
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise KernelmapError(Diagnostic("KM562", f"cannot make {folder}: {error.strerror or error}")) from None
    return found


def _chosen(registry: Registry, ids: list[str] | None, group: str | None) -> list[KernelMap]:
    if group is not None and group not in registry.contracts:
        near = nearest(group, registry.contracts)
        raise KernelmapError(Diagnostic("KM451", f"no group is called {group!r}", near=near))
    unknown = [name for name in ids or () if name not in registry.maps]
    if unknown:
        raise KernelmapError(
            [Diagnostic("KM457", f"no provider is called {n!r}", near=nearest(n, registry.maps)) for n in unknown]
        )
    if foreign := [name for name in ids or () if not registry.maps[name].executable]:
        raise KernelmapError(not_executable(registry.maps[name], registry.sources.get(name)) for name in foreign)
    if ids:
        return [registry.maps[name] for name in ids]
    if group is not None:
        return [item for item in registry.ladders.get(group, ()) if item.executable]
    production = (item for item in registry.maps.values() if item.selection.status is Status.PRODUCTION)
    return [item for item in production if item.executable]


def _proofs(chosen: list[KernelMap], folder: Path) -> dict[str, Evidence]:
    """The certificates in a folder, by provider. Raises KernelmapError for one that cannot be read."""
    if not folder.is_dir():
        raise KernelmapError(Diagnostic("KM562", f"no such folder: {folder}"))
    paths = {item.id: folder / f"{item.id}.json" for item in chosen}
    return {name: validate(read_json(path), Evidence) for name, path in paths.items() if path.exists()}


def _check(chosen: list[KernelMap], registry: Registry, proofs: Mapping[str, Evidence], output: Format) -> int:
    from kernelmap.staleness import staleness

    host = options.host_of(None)
    found = {item.id: staleness(item, registry, proofs.get(item.id), host) for item in chosen}
    if output is Format.JSON:
        emit_json({"certificates": {name: {"valid": not why, "why": list(why)} for name, why in found.items()}})
    else:
        for name, why in found.items():
            state = "valid" if not why else "none" if proofs.get(name) is None else f"stale: {'; '.join(why)}"
            emit(f"{name}\n    {state}")
    return PROBLEM if any(found.values()) else CLEAN


def _certify(chosen: list[KernelMap], registry: Registry, folders: dict[str, Path], output: Format) -> int:
    from kernelmap.certify.certificates import certify as run_trials
    from kernelmap.certify.certificates import write_evidence
    from kernelmap.cli.progress import bar

    host = options.host_of(None)
    failed = 0
    results: dict[str, object] = {}
    for item in chosen:
        with bar("certify") as report:
            outcome = run_trials(item, registry, host, report=report)
        if outcome.evidence is not None:
            path = write_evidence(outcome.evidence, folders[item.id])
            results[item.id] = {"result": "pass", "cases": outcome.evidence.cases, "file": str(path)}
            if output is not Format.JSON:
                paths = " ".join(outcome.evidence.isa_paths)
                emit(f"{item.id}\n    pass  {outcome.evidence.cases} cases  {outcome.evidence.seconds:.1f} s  {paths}")
        else:
            failed += 1
            results[item.id] = {"result": "fail", "faults": [str(fault) for fault in outcome.faults]}
            if output is not Format.JSON:
                emit(f"{item.id}\n    FAIL  " + "\n          ".join(map(str, outcome.faults[:5])))
    if output is Format.JSON:
        emit_json({"results": results})
    return PROBLEM if failed else CLEAN
