"""``bench``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, PROBLEM, Format, emit, emit_json, report
from kernelmap.errors import Diagnostic, KernelmapError, Severity, errors_in, nearest
from kernelmap.models.host import Host
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry
from kernelmap.vocabulary import Phase

if TYPE_CHECKING:
    from kernelmap.bench.measure import Setting
    from kernelmap.bench.spots import Spot
    from kernelmap.models.bench import BenchRecord

MOST_SHAPES = 2
"""Shapes of shipped circuits that a bench of a group takes."""
_DIGITS = re.compile("[0-9]{1,12}")


def bench(
    target: Annotated[str, typer.Argument(metavar="GROUP|CIRCUIT|MODEL", help="A group, or all groups of a circuit.")],
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="N[,N]", help="Kernel threads; else 1 and all cores.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Interleaved rounds.", min=1, max=10_000)] = 15,
    tokens: Annotated[str, typer.Option("--tokens", metavar="N[,N]", help="Rows of a prefill call.")] = "8,128",
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="DIM=N", help="A static dim (repeatable).")
    ] = None,
    op: Annotated[list[str] | None, typer.Option("--op", metavar="OP", help="Only this op (repeatable).")] = None,
    copies: Annotated[
        int | None, typer.Option("--copies", help="Weights to cycle through; else beyond caches.", min=1, max=1024)
    ] = None,
    written: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write a record that promote reads.")
    ] = None,
    model: options.ModelOption = None,
    host: options.HostOption = None,
    phase: options.PhaseOption = None,
    exclude: options.ExcludeOption = None,
    evidence: options.EvidenceOption = None,
    option: options.SettingOption = None,
    policy: options.PolicyOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Time the eligible providers of groups side by side, through bind and session; compare with priorities."""
    numbers, rows = _numbers(threads, "--threads", 256), _numbers(tokens, "--tokens", 65536)
    sizes = _sizes(shape)
    phases = tuple(Phase(word) for word in options.phases_of(phase))
    if Phase.INIT in phases:
        raise typer.BadParameter("init runs once: there is nothing to time", param_hint="--phase")
    registry = options.registry_of(maps)
    chosen = options.policy_of(registry, policy, None, None, exclude, evidence, option)
    machine = options.host_of(None)
    wanted = machine if host is None else _measured(options.host_of(host), machine)
    os.environ.pop("KERNELMAP_PREPARED_CACHE", None)  # random weights are no use to a later process
    from kernelmap.bench.measure import Setting

    steps = phases or (Phase.PREFILL, Phase.DECODE)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    setting = Setting(numbers or tuple(dict.fromkeys((1, cores))), rows, rounds, steps, copies)
    spots, left_out = _spots(target, model, registry, wanted, chosen, sizes, circuits, op)
    record = _measure(spots, target, registry, wanted, chosen, setting)
    return _told(record, left_out, written, output)


def _told(record: BenchRecord, left_out: list[Diagnostic], written: Path | None, output: Format) -> int:
    from kernelmap.bench.record import disagreements, record_text, refusals
    from kernelmap.cli.bench_text import bench_text
    from kernelmap.files import write_whole
    from kernelmap.render import to_json

    found = [*refusals(record), *disagreements(record), *left_out]
    text = record_text(record)
    if written is not None:
        write_whole(text, written)
    if output is Format.JSON:
        value = record.model_dump(mode="json", by_alias=True, exclude_none=True)
        emit_json({"record": value, "diagnostics": [to_json(item) for item in found]})
        return PROBLEM if errors_in(found) else CLEAN
    emit(bench_text(record))
    if written is not None:
        emit(f"wrote {written}")
    return report(found)


def _measured(host: Host, machine: Host) -> Host:
    from kernelmap.bench.record import not_beyond

    not_beyond(host, machine)
    return host.model_copy(update={"memory_bytes": machine.memory_bytes, "devices": machine.devices})


def _measure(
    spots: list[Spot], target: str, registry: Registry, host: Host, policy: Policy, setting: Setting
) -> BenchRecord:  # fmt: skip
    from kernelmap.bench.measure import Progress, case_count, measure
    from kernelmap.bench.record import make_record
    from kernelmap.cli.progress import bar

    total = sum(case_count(spot, setting) for spot in spots)
    with bar("bench") as shown:
        progress = Progress(shown, total)
        cases = [case for spot in spots for case in measure(spot, registry, host, setting, progress)]
    if not any(case.times for case in cases) and not any(case.refused for case in cases):
        reasons = {f"{i.provider}: {'; '.join(i.reasons)}" for case in cases for i in case.ineligible}
        help = "\n".join(sorted(reasons)) or "no provider lists a phase that was asked for"
        raise KernelmapError(Diagnostic("KM580", f"{target}: nothing can be timed on {host.name}", help=help))
    return make_record(cases, target, registry, host, policy)


def _spots(
    target: str, model: Path | None, registry: Registry, host: Host, policy: Policy, sizes: dict[str, int],
    circuits: list[Path] | None, ops: list[str] | None,
) -> tuple[list[Spot], list[Diagnostic]]:  # fmt: skip
    """What to time, and a note for each op that is left out because it has state."""
    from kernelmap.bench.spots import circuit_spots, sizes_apply, with_sizes
    from kernelmap.bench.stage import judged
    from kernelmap.circuit.elaborate import elaborate

    if target in registry.contracts and model is None:
        if ops:
            raise typer.BadParameter("a group has one op: --op is for circuits", param_hint="--op")
        return _group_spots(target, registry, host, policy, sizes, circuits), []
    try:
        about = options.subject(target, model, circuits)
    except KernelmapError as error:
        raise _unknown(target, registry, error) from None
    circuit = about.circuit
    elaborated = elaborate(circuit.circuit, circuit.source, about.inventory, registry.contracts, policy.options)
    spots = circuit_spots(circuit, elaborated, registry, host, policy)
    names = {spot.op for spot in spots}
    if unknown := [name for name in ops or () if name not in names]:
        help = f"it has {', '.join(sorted(names))}; of ops with equal group and dims only the first is measured"
        raise KernelmapError(
            Diagnostic("KM580", f"{circuit.circuit.id} has no op {n!r} to time", near=nearest(n, names), help=help)
            for n in unknown
        )
    notes = [
        Diagnostic("KM583", f"{spot.op} is left out: it has state", Severity.NOTE, help="kernelmap run times it")
        for spot in spots
        if spot.contract.state and not ops
    ]
    spots = [spot for spot in spots if (spot.op in ops if ops else not spot.contract.state)]
    sizes_apply(spots, sizes)
    return [judged(with_sizes(spot, sizes), registry, host) if sizes else spot for spot in spots], notes


def _unknown(target: str, registry: Registry, error: KernelmapError) -> KernelmapError:
    """What to say of a target that is neither group nor circuit; a file that cannot be read keeps its own problem."""
    if any(item.code != "KM301" for item in error.diagnostics):
        return error
    near = nearest(target, (*registry.contracts, *registry.ladders))
    help = "kernelmap list shows groups; " + error.diagnostics[0].help
    return KernelmapError(Diagnostic("KM580", f"no group and no circuit is called {target!r}", near=near, help=help))


def _group_spots(
    group: str, registry: Registry, host: Host, policy: Policy, sizes: dict[str, int], circuits: list[Path] | None
) -> list[Spot]:  # fmt: skip
    from kernelmap.bench.small import group_spots
    from kernelmap.bench.spots import sizes_apply, with_sizes
    from kernelmap.bench.stage import judged

    if not registry.ladders.get(group):
        raise KernelmapError(Diagnostic("KM580", f"group {group} has no provider"))
    spots = group_spots(group, registry, policy, circuits or (), MOST_SHAPES)
    sizes_apply(spots, sizes)
    shaped = {tuple(sorted(spot.dims.items())): spot for spot in (with_sizes(item, sizes) for item in spots)}
    return [judged(spot, registry, host) for spot in shaped.values()]


def _numbers(words: str | None, flag: str, most: int) -> tuple[int, ...]:
    """Whole numbers from 1 to ``most``, each once, in the order given."""
    found = []
    for word in words.split(",") if words is not None else ():
        if not _DIGITS.fullmatch(word.strip()) or not 1 <= int(word) <= most:
            raise typer.BadParameter(f"{word!r} is no number from 1 to {most}", param_hint=flag)
        found.append(int(word))
    return tuple(dict.fromkeys(found))


def _sizes(words: Iterable[str] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words or ():
        name, equals, size = word.partition("=")
        if not (equals and name and _DIGITS.fullmatch(size) and 1 <= int(size) < 2**31):
            raise typer.BadParameter(f"{word!r} is not DIM=N with N from 1 on", param_hint="--shape")
        found[name] = int(size)
    return found
