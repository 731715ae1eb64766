"""``replay`` and ``bisect``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, PROBLEM, Format, emit, emit_json
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.lock import read_lock
from kernelmap.policies import switches_set
from kernelmap.resolver import kill_switches

if TYPE_CHECKING:
    from kernelmap.bind import BoundPlan
    from kernelmap.models.host import Host
    from kernelmap.models.lock import Lock
    from kernelmap.models.plan import Plan
    from kernelmap.models.policy import Policy
    from kernelmap.models.tracing import Bisection, Difference, Divergence
    from kernelmap.recorded import Recording
    from kernelmap.registry import Registry
    from kernelmap.tracing.bisect import Bisector
    from kernelmap.tracing.captured import CapturedCall
    from kernelmap.tracing.replay import Replayed


def replay(
    file: Annotated[Path, typer.Argument(help="A call that run --capture saved.")],
    provider: Annotated[
        str | None, typer.Option("--provider", metavar="ID", help="Any of the group, or oracle; else the captured one.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="The oracle and every provider of the group.")] = False,
    threads: Annotated[int | None, typer.Option("--threads", help="Else as captured.", min=1, max=256)] = None,
    maps: options.MapsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Run a captured call again through providers of its group, and compare with what was recorded."""
    if provider is not None and everything:
        raise typer.BadParameter("either --provider or --all")
    registry = options.registry_of(maps)

    from kernelmap.tracing.captured import read_capture
    from kernelmap.tracing.replay import replay as replay_one
    from kernelmap.tracing.replay import replay_all

    call = read_capture(file, registry)
    host = options.host_of(None)
    count = threads or call.facts.threads
    switches = switches_set(kill_switches(registry), os.environ)
    rows: tuple[Replayed, ...]
    if everything:
        rows = tuple(replay_all(call, registry, host, threads=count, switches=switches))
    else:
        rows = replay_one(call, registry, host, provider or call.facts.provider, threads=count, switches=switches)
    if output is Format.JSON:
        facts = call.facts.model_dump(mode="json", by_alias=True, exclude={"schema_ref"})
        emit_json({"capture": facts, "threads": count, "replayed": [_row(item) for item in rows]})
    else:
        emit(_replay_text(call, rows))
    return CLEAN if all(item.agrees or item.skipped for item in rows) else PROBLEM


def _row(item: Replayed) -> dict[str, object]:
    from kernelmap.tracing.beside import number

    return {
        "provider": item.provider,
        "variant": item.variant,
        "status": item.status,
        "agrees": item.agrees,
        "skipped": item.skipped,
        "faults": list(item.faults),
        "differences": [difference.model_dump(mode="json") for difference in item.differences],
        "max_error": number(item.worst),
    }


def _replay_text(call: CapturedCall, rows: tuple[Replayed, ...]) -> str:
    facts = call.facts
    layer = "" if facts.layer is None else f" layer {facts.layer}"
    lines = [
        f"{facts.op}{layer} ({facts.phase.value}) of {facts.circuit}",
        f"  {facts.group}",
        f"  recorded from {facts.provider}, status {facts.status}",
    ]
    for item in rows:
        word = "skipped" if item.skipped else "agrees " if item.agrees else "DEPARTS"
        lines.append(f"{word}  {item.provider} {item.variant}".rstrip())
        lines += [f"         {text}" for text in (item.skipped, *item.faults) if text]
        for difference in item.differences:
            lines += [f"         {text}" for text in _difference_lines(difference, "recorded", "replayed")]
        if item.agrees and item.worst:
            lines.append(f"         within the tolerance, by up to {item.worst:.3g}")
    return "\n".join(lines)


def _difference_lines(item: Difference, one: str, two: str) -> list[str]:
    at = ", ".join(map(str, item.index))
    error = f"{item.max_error:.3g}" if isinstance(item.max_error, float) else item.max_error
    width = max(len(one), len(two))
    return [
        f"{item.port}[{at}] is the first of {item.count} of {item.size} that depart",
        f"{one:<{width}}  {item.expected} (bytes {item.expected_bytes})",
        f"{two:<{width}}  {item.found} (bytes {item.found_bytes})",
        f"largest difference {error}",
    ]


def bisect(
    target: Annotated[str, typer.Argument(help="A model file, or a circuit with --model.")],
    good: Annotated[Path, typer.Option("--good", metavar="LOCK", help="The lock whose choices are right.")],
    bad: Annotated[Path, typer.Option("--bad", metavar="LOCK", help="The lock whose choices depart somewhere.")],
    inputs: Annotated[
        Path | None, typer.Option("--inputs", metavar="NPZ", help="Recorded activations to feed.")
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", help="Rows of seeded random input without --inputs.", min=1, max=2**20)
    ] = 16,
    threads: Annotated[int | None, typer.Option("--threads", help="Kernel threads; else all cores.", min=1)] = None,
    phase: options.PhaseOption = None,
    model: options.ModelOption = None,
    exclude: options.ExcludeOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Find the first op, layer and provider in which the choices of two locks depart. Exits 1 if there is one."""
    shown = options.phases_of(phase)
    registry = options.registry_of(maps)
    given = options.policy_of(registry, None, None, None, exclude, None, None)
    locks = [(f"--{word} {path}", read_lock(path)) for word, path in (("good", good), ("bad", bad))]
    about = options.subject(target, model, circuits)
    if about.storage != "model file":
        help = "kernelmap bisect MODEL.gguf, or kernelmap bisect CIRCUIT --model MODEL.gguf"
        raise KernelmapError(Diagnostic("KM543", "bisecting takes a model file", help=help))
    recording = None
    if inputs is not None:
        from kernelmap.recorded import Recording

        recording = Recording(inputs)
    host = options.host_of(None)
    plans = _plans(locks, about, registry, host, given)
    result = _lockstep(plans[0], plans[1], about, registry, host, recording, shown, tokens, threads)
    if output is Format.JSON:
        emit_json(result.model_dump(mode="json", by_alias=True, exclude={"schema_ref"}))
    else:
        emit(_bisect_text(result))
    return PROBLEM if result.found is not None else CLEAN


def _plans(
    locks: Sequence[tuple[str, Lock]], about: options.Subject, registry: Registry, host: Host, given: Policy
) -> list[Plan]:
    """Both locks as plans, or the problems of both."""
    from kernelmap.source_digests import installed_sources
    from kernelmap.tracing.lock_plan import plan_of_lock

    problems: list[Diagnostic] = []
    plans: list[Plan] = []
    sources = installed_sources()
    for name, lock in locks:
        try:
            plans.append(plan_of_lock(lock, about.circuit, about.inventory, registry, host, given, sources, name))
        except KernelmapError as error:
            problems += error.diagnostics
    if problems:
        raise KernelmapError(problems)
    return plans


def _lockstep(
    good: Plan, bad: Plan, about: options.Subject, registry: Registry, host: Host, recording: Recording | None,
    shown: tuple[str, ...], tokens: int, threads: int | None,
) -> Bisection:  # fmt: skip
    from kernelmap.bind import bind, bind_also
    from kernelmap.circuit.elaborate import elaborate
    from kernelmap.cli.progress import bar
    from kernelmap.tracing.bisect import Bisector, differing

    circuit = about.circuit
    elaborated = elaborate(circuit.circuit, circuit.source, about.inventory, registry.contracts, good.options)
    chosen = differing(good, bad, elaborated)
    if not chosen:
        return Bisector(good, bad, (), {}).result()
    with bar("bind") as progress:
        bound = bind(good, circuit, registry, about.inventory, host=host, progress=progress)
        others = bind_also(bound, chosen, registry, about.inventory, host, progress=progress)
    bisector = Bisector(good, bad, chosen, others)
    _run(bisector, bound, recording, shown, tokens, threads)
    return bisector.result()


def _run(
    bisector: Bisector, bound: BoundPlan, recording: Recording | None, shown: tuple[str, ...], tokens: int,
    threads: int | None,
) -> None:  # fmt: skip
    """Runs the good plan over every phase, or up to the first departing call."""
    from kernelmap.cli.progress import bar
    from kernelmap.cli.running import given_of, steps_of
    from kernelmap.session import Session
    from kernelmap.tracing.bisect import Found
    from kernelmap.vocabulary import Phase

    try:
        session = Session(bound, threads=threads or len(os.sched_getaffinity(0)), probe=bisector.probe)
        for step in steps_of(bound.plan, shown, recording):
            given = given_of(bound.elaborated, step, recording, tokens)
            call = session.prefill if step is Phase.PREFILL else session.decode
            with bar(f"{step.value} in lockstep") as observer:
                call(given, observer)
    except Found:
        return
    if not any(item.calls for item in bisector.result().compared):
        help = "give inputs for the phases in which the locks differ"
        raise KernelmapError(Diagnostic("KM577", "no op in which the locks differ was called", help=help))


def _bisect_text(result: Bisection) -> str:
    lines = [
        f"{result.circuit}: {len(result.compared)} of the decisions differ, {result.same} are the same in both locks"
    ]
    for item in result.compared:
        layers = f" layers {item.layers}" if item.layers else ""
        lines.append(f"  {item.op} {item.phase.value}{layers}: {_calls(item.calls)}")
        lines += [f"    good  {item.good}", f"    bad   {item.bad}"]
    if result.found is None:
        lines.append("no call departs" if result.compared else "the locks choose the same: nothing to compare")
    else:
        lines += _found_lines(result.found)
    return "\n".join(lines)


def _calls(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'} compared" if count else "not called, not judged"


def _found_lines(found: Divergence) -> list[str]:
    lines = [f"first departing call: {found.where}"]
    for word, side in (("good", found.expected), ("bad ", found.found)):
        lines.append(f"    {word}  {side.provider} {side.variant}")
    lines += [f"    {text}" for text in found.faults]
    for difference in found.differences:
        lines += [f"    {text}" for text in _difference_lines(difference, "good", "bad")]
    return lines
