"""``certify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, PROBLEM, Format, emit, emit_json
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.models.kernel_map import KernelMap
from kernelmap.registry import Registry
from kernelmap.sources import shipped_maps
from kernelmap.vocabulary import Status


def certify(
    ids: Annotated[list[str] | None, typer.Argument(help="Providers; without any, all in production.")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="G", help="Every provider of a group.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say which certificates are stale, and why.")] = False,
    into: Annotated[Path | None, typer.Option("--into", metavar="DIR", help="Where evidence is written.")] = None,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Prove providers: run each over a generated corpus of its contract and write its certificate."""
    registry = options.registry_of(maps)
    chosen = _chosen(registry, ids, group)
    if check:
        return _check(chosen, registry, output)
    folder = into or shipped_maps() / "evidence"
    if not folder.is_dir():
        raise KernelmapError(Diagnostic("KM562", f"no such folder: {folder}"))
    return _certify(chosen, registry, folder, output)


def _chosen(registry: Registry, ids: list[str] | None, group: str | None) -> list[KernelMap]:
    if group is not None and group not in registry.contracts:
        near = nearest(group, registry.contracts)
        raise KernelmapError(Diagnostic("KM451", f"no group is called {group!r}", near=near))
    unknown = [name for name in ids or () if name not in registry.maps]
    if unknown:
        raise KernelmapError(
            [Diagnostic("KM457", f"no provider is called {n!r}", near=nearest(n, registry.maps)) for n in unknown]
        )
    if ids:
        return [registry.maps[name] for name in ids]
    if group is not None:
        return list(registry.ladders.get(group, ()))
    return [item for item in registry.maps.values() if item.selection.status is Status.PRODUCTION]


def _check(chosen: list[KernelMap], registry: Registry, output: Format) -> int:
    from kernelmap.staleness import staleness

    found = {item.id: staleness(item, registry, registry.evidence.get(item.id)) for item in chosen}
    if output is Format.JSON:
        emit_json({"certificates": {name: {"valid": not why, "why": list(why)} for name, why in found.items()}})
    else:
        for name, why in found.items():
            emit(f"{name:<52} {'valid' if not why else 'stale: ' + '; '.join(why)}")
    return PROBLEM if any(found.values()) else CLEAN


def _certify(chosen: list[KernelMap], registry: Registry, folder: Path, output: Format) -> int:
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
            path = write_evidence(outcome.evidence, folder)
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
