"""``list``, ``show``, ``schema`` and ``rule``."""

from __future__ import annotations

import json
import textwrap
from typing import Annotated

import typer

from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, Format, emit, emit_json
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.models.kernel_map import KernelMap
from kernelmap.registry import Registry


def list_maps(
    group: Annotated[str | None, typer.Option("--group", metavar="G", help="The ladder of one group.")] = None,
    op: Annotated[str | None, typer.Option("--op", help="Only groups of this op.")] = None,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """List providers, group by group, highest priority first."""
    registry = options.registry_of(maps)
    if group is not None and group not in registry.contracts:
        near = nearest(group, registry.contracts)
        raise KernelmapError(Diagnostic("KM451", f"no group is called {group!r}", near=near))
    groups = [
        name
        for name, contract in registry.contracts.items()
        if (group is None or name == group) and (op is None or contract.op == op)
    ]
    if output is Format.JSON:
        rows = {name: [_row(item) for item in registry.ladders.get(name, ())] for name in groups}
        emit_json({"groups": rows})
        return CLEAN
    emit("\n\n".join(_ladder(name, registry) for name in groups) or "no groups")
    return CLEAN


def _row(item: KernelMap) -> dict[str, object]:
    picked = item.selection
    return {
        "id": item.id,
        "op": item.op,
        "status": picked.status.value,
        "priority": picked.priority,
        "phases": [phase.value for phase in picked.phases],
        "isa": list(item.requires.isa),
        "variants": [variant.name for variant in item.impl.variants],
        "summary": item.summary,
    }


def _ladder(group: str, registry: Registry) -> str:
    title = f"{group}  ({registry.contracts[group].op})"
    lines = [title if len(title) <= 80 else f"{group}\n    ({registry.contracts[group].op})"]
    for item in registry.ladders.get(group, ()):
        picked = item.selection
        phases = ",".join(phase.value for phase in picked.phases)
        rank = f"{picked.status.value} {picked.priority}"
        needs = f"  needs {', '.join(item.requires.isa)}" if item.requires.isa else ""
        head = f"  {item.id:<46} {rank:<15} {phases}{needs}"
        lines.append(head if len(head) <= 80 else f"  {item.id}\n      {rank}  {phases}{needs}")
    if len(lines) == 1:
        lines.append("  no provider")
    return "\n".join(lines)


def show(
    name: Annotated[str, typer.Argument(help="A provider id or an equivalence group.")],
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Show a map, or the (expanded) contract of a group, with its digest and where it is declared."""
    registry = options.registry_of(maps)
    if name in registry.maps:
        item = registry.maps[name]
        value = item.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        kind, place, digest = "map", registry.sources[name].name, item.digest
    elif name in registry.contracts:
        contract = registry.contracts[name]
        value = contract.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        kind, place, digest = "contract", registry.contract_sources[name].name, contract.digest
    else:
        near = nearest(name, (*registry.maps, *registry.contracts))
        raise KernelmapError(Diagnostic("KM457", f"no provider or group is called {name!r}", near=near))
    value.pop("$schema", None)
    if output is Format.JSON:
        emit_json({"kind": kind, "file": place, "digest": digest, "value": value})
        return CLEAN
    emit(f"{kind} {name}\n  file    {place}\n  digest  {digest}")
    if kind == "contract":
        emit("\n" + _ladder(name, registry))
    emit("\n" + json.dumps(value, indent=2, ensure_ascii=False))
    return CLEAN


def schema(
    name: Annotated[
        str,
        typer.Argument(
            help="contract, kernel_map, circuit, inventory, host, policy, plan, evidence, lock, diff, audit, report, "
            "bench, shadow, capture, bisection, foreign_import, foreign_audit."
        ),
    ],
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Print the JSON Schema (2020-12) of a file format."""
    from kernelmap.schema_files import SCHEMAS, schema_text

    if name not in SCHEMAS:
        help = f"there are: {', '.join(SCHEMAS)}"
        raise KernelmapError(
            Diagnostic("KM902", f"no schema is called {name!r}", near=nearest(name, SCHEMAS), help=help)
        )
    emit(schema_text(name))
    return CLEAN


def rule(
    code: Annotated[str | None, typer.Argument(help="A code such as KM203; without one, all are listed.")] = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Say what a diagnostic code means and how to mend what it reports."""
    from kernelmap.rules import CATALOGUE

    if code is not None and code.upper() not in CATALOGUE:
        near = nearest(code.upper(), CATALOGUE)
        raise KernelmapError(
            Diagnostic("KM902", f"no rule is called {code!r}", near=near, help="kernelmap rule lists all")
        )
    rules = [CATALOGUE[code.upper()]] if code is not None else [CATALOGUE[key] for key in sorted(CATALOGUE)]
    if output is Format.JSON:
        emit_json(
            {"rules": [{"code": r.code, "title": r.title, "meaning": r.meaning, "remedy": r.remedy} for r in rules]}
        )
    elif code is None:
        emit("\n".join(f"{item.code}  {item.title}" for item in rules))
    else:
        item = rules[0]
        body = "\n\n".join(textwrap.fill(part, 80) for part in (item.meaning, f"To mend it: {item.remedy}"))
        emit(f"{item.code}: {item.title}\n\n{body}")
    return CLEAN
