"""``inventory`` and ``host``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, Format, emit, emit_json
from kernelmap.models.inventory import Inventory


def inventory(
    file: Annotated[Path, typer.Argument(help="A GGUF or safetensors file, a folder of shards, or a JSON profile.")],
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Show the storage facts of a model: every tensor's format and shape."""
    from kernelmap.inventory import read_inventory

    found = read_inventory(file)
    if output is Format.JSON:
        emit_json({**found.model_dump(mode="json", by_alias=True, exclude_defaults=True), "digest": found.digest})
    else:
        emit(_inventory_text(found))
    return CLEAN


def _inventory_text(found: Inventory) -> str:
    lines = [f"architecture {found.architecture}", f"digest       {found.digest}", ""]
    totals: dict[str, list[int]] = {}
    for tensor in found.tensors:
        shape = " x ".join(map(str, tensor.shape))
        lines.append(f"{tensor.name:<40} {tensor.format:<8} {shape:<20} {tensor.nbytes:>11,}")
        entry = totals.setdefault(tensor.format, [0, 0])
        entry[0] += 1
        entry[1] += tensor.nbytes
    lines.append("")
    lines += [f"{count:>5} tensors {name:<12} {size:>20,} bytes" for name, (count, size) in sorted(totals.items())]
    lines.append(f"{len(found.tensors):>5} tensors {'':<12} {sum(t.nbytes for t in found.tensors):>20,} bytes")
    return "\n".join(lines)


def host(
    profile: Annotated[str | None, typer.Argument(help="A profile by name or path; else this machine.")] = None,
    profiles: Annotated[bool, typer.Option("--list", help="List the shipped profiles.")] = False,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Show the facts of a host that checks consult."""
    from kernelmap.host import profile_names

    if profiles:
        names = list(profile_names())
        if output is Format.JSON:
            emit_json({"profiles": names})
        else:
            emit("\n".join(names))
        return CLEAN
    found = options.host_of(profile)
    if output is Format.JSON:
        emit_json(found.model_dump(mode="json", by_alias=True, exclude={"schema_ref"}))
        return CLEAN
    caches = found.caches
    emit(f"host     {found.name}\ncpu      {found.arch} {found.cpu}\ncores    {found.cores} ({found.threads} threads)")
    emit(f"caches   L1d {caches.l1d:,}  L2 {caches.l2:,}  L3 {caches.l3:,} bytes")
    emit(f"memory   {found.memory_bytes:,} bytes\ndevices  {', '.join(found.devices)}")
    line = "isa     "
    for feature in found.isa:
        if len(line) + 1 + len(feature) > 80:
            emit(line)
            line = "        "
        line += f" {feature}"
    emit(line)
    return CLEAN
