"""``run``: resolve, bind, and run a circuit on a model."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmap.cli import options, watching
from kernelmap.cli.auditing import refuse_drift
from kernelmap.cli.output import CLEAN, Format, emit, emit_json
from kernelmap.decision_text import WIDTH, plan_text
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.lock import locked_policy, read_lock
from kernelmap.resolver import resolve
from kernelmap.vocabulary import Phase

if TYPE_CHECKING:
    from kernelmap.circuit.instances import Elaborated
    from kernelmap.models.plan import Plan
    from kernelmap.models.policy import Policy
    from kernelmap.recorded import Comparison, Recording
    from kernelmap.session import Array, Session


def run(
    target: Annotated[str, typer.Argument(help="A model file, or a circuit with --model.")],
    inputs: Annotated[
        Path | None, typer.Option("--inputs", metavar="NPZ", help="Recorded activations to feed.")
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", help="Rows of seeded random input without --inputs.", min=1, max=2**20)
    ] = 16,
    save: Annotated[Path | None, typer.Option("--save", metavar="NPZ", help="Save every output (atomically).")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Kernel threads; else all cores.", min=1)] = None,
    repeat: Annotated[int, typer.Option("--repeat", help="Timed calls after the first.", min=1)] = 3,
    locked: options.LockedOption = None,
    shadow: watching.ShadowOption = None,
    shadow_budget: watching.BudgetOption = 0,
    on_divergence: watching.DivergenceOption = "record",
    shadow_output: watching.EvidenceFileOption = None,
    capture: watching.CaptureOption = None,
    capture_dir: watching.CaptureFolderOption = None,
    model: options.ModelOption = None,
    phase: options.PhaseOption = None,
    route: options.RouteOption = None,
    pin: options.PinOption = None,
    exclude: options.ExcludeOption = None,
    evidence: options.EvidenceOption = None,
    option: options.SettingOption = None,
    policy: options.PolicyOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Resolve, show the plan, bind, run, and compare with recorded outputs where there are any."""
    shown = options.phases_of(phase)
    watch = watching.Watch(shadow, shadow_budget, on_divergence, shadow_output, capture, capture_dir)
    registry = options.registry_of(maps)
    chosen = options.policy_of(registry, policy, route, pin, exclude, evidence, option)
    before = read_lock(locked) if locked is not None else None
    if before is not None:
        chosen = locked_policy(before, chosen)
    about = options.subject(target, model, circuits)
    if about.storage != "model file":
        help = "kernelmap run MODEL.gguf, or kernelmap run CIRCUIT --model MODEL.gguf"
        raise KernelmapError(Diagnostic("KM543", "running takes a model file", help=help))
    recording = None
    if inputs is not None:
        from kernelmap.recorded import Recording

        recording = Recording(inputs)  # before anything slow: a wrong file is told at once
    host = options.host_of(None)
    plan = resolve(about.circuit.circuit, about.circuit.source, about.inventory, registry, host, chosen)
    if before is not None:
        refuse_drift(before, plan, about, registry, None, chosen)
    watch.plan(plan, about, registry, host)
    if output is not Format.JSON:
        emit(plan_text(plan, storage=about.storage, phases=shown))

    from kernelmap.bind import bind
    from kernelmap.cli.progress import bar
    from kernelmap.recorded import save_arrays
    from kernelmap.session import Session

    with bar("bind") as progress:
        started = time.perf_counter()
        bound = bind(plan, about.circuit, registry, about.inventory, host=host, environ=_environ(chosen),
                     progress=progress)  # fmt: skip
        bind_seconds = time.perf_counter() - started
    count = threads or len(os.sched_getaffinity(0))
    results: list[PhaseResult] = []
    with watch.over(bound, count) as probe:
        session = Session(bound, threads=count, probe=probe)
        for step in steps_of(plan, shown, recording):
            results.append(_phase(session, step, recording, tokens, repeat))
        session.check_counters()
    saved = {f"{item.phase.value}/{name}": array for item in results for name, array in item.outputs.items()}
    if save is not None:
        save_arrays(save, saved)
    if output is Format.JSON:
        emit_json({**_value(plan.digest, bind_seconds, session, results), **watch.value()})
        return watch.code
    emit(_text(bind_seconds, session, results))
    if save is not None:
        emit(f"saved {len(saved)} arrays to {save}")
    return watch.tell()


def _environ(policy: Policy) -> dict[str, str]:
    """The environment with the kill switches of the policy: a policy file may set them, too."""
    return {**os.environ, **dict.fromkeys(policy.kill_switches, "1")}


def steps_of(plan: Plan, shown: tuple[str, ...], recording: Recording | None) -> tuple[Phase, ...]:
    """The phases to call: those of the plan that were asked for and, with a recording, recorded."""
    return tuple(
        step
        for step in (Phase.PREFILL, Phase.DECODE)
        if step in plan.phases
        and not (shown and step.value not in shown)
        and (recording is None or recording.has_phase(step))
    )


def warm(
    target: Annotated[str, typer.Argument(help="A circuit (name or path), or a model file whose circuit is found.")],
    model: options.ModelOption = None,
    route: options.RouteOption = None,
    pin: options.PinOption = None,
    exclude: options.ExcludeOption = None,
    option: options.SettingOption = None,
    policy: options.PolicyOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Compile the providers that a circuit selects on this host, so that a later bind loads them from the cache."""
    registry = options.registry_of(maps)
    chosen = options.policy_of(registry, policy, route, pin, exclude, None, option)
    about = options.subject(target, model, circuits)
    host = options.host_of(None)
    plan = resolve(about.circuit.circuit, about.circuit.source, about.inventory, registry, host, chosen)

    from kernelmap.bind import warm as warm_plan
    from kernelmap.cli.progress import bar

    with bar("compile") as progress:
        started = time.perf_counter()
        done = warm_plan(plan, about.circuit, registry, about.inventory, host=host, environ=_environ(chosen),
                         progress=progress)  # fmt: skip
        seconds = time.perf_counter() - started
    if output is Format.JSON:
        rows = [{"provider": w.provider, "variant": w.variant, "seconds": w.seconds} for w in done]
        emit_json({"plan": plan.digest, "seconds": seconds, "warmed": rows})
        return CLEAN
    for item in done:
        emit(f"{item.provider:<48} {item.variant:<20} {item.seconds:8.2f} s")
    emit(f"{len(done)} variants ready in {seconds:.2f} s")
    return CLEAN


class PhaseResult:
    """What one phase gave: outputs, times, and comparisons."""

    def __init__(self, phase: Phase, rows: int, first: float, times: list[float]) -> None:
        self.phase, self.rows, self.first, self.times = phase, rows, first, sorted(times)
        self.outputs: Mapping[str, Array] = {}
        self.comparisons: list[Comparison] = []

    @property
    def median(self) -> float:
        """Median seconds of the timed calls."""
        return self.times[len(self.times) // 2]


def given_of(
    elaborated: Elaborated, phase: Phase, recording: Recording | None, tokens: int
) -> dict[str, Array]:  # fmt: skip
    """What to feed a phase: what was recorded, else seeded random values of ``tokens`` rows (decode: one)."""
    from kernelmap.recorded import random_inputs

    if recording is not None:
        return recording.inputs(elaborated, phase)
    return random_inputs(elaborated, tokens if phase is Phase.PREFILL else 1)


def _phase(session: Session, phase: Phase, recording: Recording | None, tokens: int, repeat: int) -> PhaseResult:
    from kernelmap.cli.progress import bar

    elaborated = session.bound.elaborated
    given = given_of(elaborated, phase, recording, tokens)
    call = session.prefill if phase is Phase.PREFILL else session.decode
    with bar(f"{phase.value} (first call compiles)") as observer:
        started = time.perf_counter()
        outputs = call(given, observer)
        first = time.perf_counter() - started
    times = []
    probe, session.probe = session.probe, None  # timed calls are production alone
    for _ in range(repeat):
        started = time.perf_counter()
        outputs = call(given)
        times.append(time.perf_counter() - started)
    session.probe = probe
    result = PhaseResult(phase, max((len(array) for array in given.values()), default=0), first, times)
    result.outputs = outputs
    if recording is not None:
        result.comparisons = list(recording.compare(elaborated, phase, outputs))
    return result


def _text(bind_seconds: float, session: Session, results: list[PhaseResult]) -> str:
    lines = [f"bound in {bind_seconds:.2f} s, {session.threads} threads"]
    for result in results:
        per_op = _op_seconds(session, result.phase)
        rows = f"{result.rows} row{'' if result.rows == 1 else 's'}"
        lines.append("")
        lines.append(
            f"{result.phase.value}: {rows}  {result.median * 1e3:.2f} ms a call (median)  first {result.first:.2f} s"
        )
        lines.append("  per op, all layers, least over calls")
        for (name, provider, variant), seconds in per_op.items():
            lines.append(f"    {name:<17} {seconds * 1e3:9.2f} ms  {variant:<19} {provider}")
            if len(lines[-1]) > WIDTH:
                lines[-1] = f"    {name:<17} {seconds * 1e3:9.2f} ms  {variant}\n{'':<36}{provider}"
        if result.comparisons:
            lines.append("  relative rms against the recording      layer    tensor   median row")
            for item in result.comparisons:
                layer = "-" if item.layer is None else str(item.layer)
                lines.append(f"    {item.name:<34} {layer:>8} {item.relative_rms:10.2e} {item.median_row:10.2e}")
    calls = sum(session.executed.values())
    lines.append("")
    lines.append(
        f"executed equals selected: {calls} calls, {len(session.executed)} (op, layer, phase), no other provider"
    )
    return "\n".join(lines)


def _op_seconds(session: Session, phase: Phase) -> dict[tuple[str, str, str], float]:
    """(op, provider, variant) to seconds a call over all layers, least over calls: the first one compiles."""
    per_layer: dict[tuple[str, str, str], dict[int | None, float]] = {}
    for entry in session.trace:
        if entry.phase is phase:
            layers = per_layer.setdefault((entry.op, entry.provider, entry.variant), {})
            layers[entry.layer] = min(layers.get(entry.layer, entry.seconds), entry.seconds)
    return {key: sum(layers.values()) for key, layers in per_layer.items()}


def _value(digest: str, bind_seconds: float, session: Session, results: list[PhaseResult]) -> dict[str, Any]:
    phases = {}
    for result in results:
        phases[result.phase.value] = {
            "rows": result.rows,
            "first_seconds": result.first,
            "median_seconds": result.median,
            "ops": [
                {"op": name, "provider": provider, "variant": variant, "seconds": seconds}
                for (name, provider, variant), seconds in _op_seconds(session, result.phase).items()
            ],
            "comparisons": [
                {"output": c.name, "layer": c.layer, "relative_rms": c.relative_rms, "median_row": c.median_row}
                for c in result.comparisons
            ],
        }
    executed = [
        {"op": name, "phase": phase.value, "provider": provider, "calls": calls}
        for (name, phase, provider), calls in sorted(session.executed.items())
    ]
    return {
        "plan": digest,
        "threads": session.threads,
        "bind_seconds": bind_seconds,
        "phases": phases,
        "executed": executed,
    }
