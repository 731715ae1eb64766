"""``report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kernelmap.cli import options
from kernelmap.cli.auditing import ProfilesOption, TargetsArgument, lock_host, scope_of
from kernelmap.cli.output import CLEAN, Format, emit, harmless
from kernelmap.files import write_whole
from kernelmap.models.diff import Diff
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry

DEFAULT = Path("kernelmap-report.html")


def report(
    targets: TargetsArgument = None,
    hosts: ProfilesOption = None,
    written: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help=f"Where to write; else {DEFAULT}, and JSON to standard output."),
    ] = None,
    sides: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", metavar="A B", help="Also what changed between two sides, as in kernelmap diff."),
    ] = None,
    model: options.ModelOption = None,
    route: options.RouteOption = None,
    pin: options.PinOption = None,
    exclude: options.ExcludeOption = None,
    evidence: options.EvidenceOption = None,
    option: options.SettingOption = None,
    policy: options.PolicyOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.ReportFormatOption = Format.HTML,
) -> int:
    """Write decisions, contracts, claims and audit findings of circuits on hosts as one HTML file (or JSON)."""
    from kernelmap.cli.progress import bar
    from kernelmap.report.build import make_report
    from kernelmap.report.page import report_html, report_value

    registry = options.registry_of(maps)
    given = options.policy_of(registry, policy, route, pin, exclude, evidence, option)
    scope = scope_of(targets, hosts, model, circuits)
    with bar("report") as progress:
        diff = _diff(sides, registry, given, scope.names, circuits) if sides is not None else None
        made = make_report(
            scope.targets, scope.hosts, registry, given, whole=scope.whole, diff=diff, progress=progress
        )  # fmt: skip
    if output is Format.JSON:
        text = json.dumps(report_value(made), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        text = report_html(made)
    text = harmless(text)
    path = written if written is not None or output is Format.JSON else DEFAULT
    if path is None:
        emit(text)
        return CLEAN
    write_whole(text, path)
    emit(f"wrote {path} ({len(text.encode('utf-8')):,} bytes)")
    return CLEAN


def _diff(
    sides: tuple[str, str], registry: Registry, policy: Policy, hosts: list[str], circuits: list[Path] | None
) -> Diff:
    """What changed from one side to the other; sides that are not locks are resolved for the report's hosts."""
    from kernelmap.diff import compare
    from kernelmap.sides import Ground, side_of

    ground = Ground(registry, [lock_host(name) for name in hosts], lock_host, policy, tuple(circuits or ()))
    before, after = sides
    return compare(side_of(before, ground), side_of(after, ground), sides)
