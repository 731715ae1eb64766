"""What ``run`` does beside running: shadows and captures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, PROBLEM, emit, report
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.models.host import Host
from kernelmap.models.plan import Plan
from kernelmap.registry import Registry

if TYPE_CHECKING:
    from kernelmap.bind import BoundPlan
    from kernelmap.models.tracing import OnDivergence
    from kernelmap.session import Probe
    from kernelmap.tracing.capture import Capturer
    from kernelmap.tracing.choosing import Choice, Wanted
    from kernelmap.tracing.shadow import Shadow

ShadowOption = Annotated[
    list[str] | None,
    typer.Option("--shadow", metavar="OP[:PHASE]=ID", help="Run this provider beside production (repeatable)."),
]
BudgetOption = Annotated[int, typer.Option("--shadow-budget", help="Departing calls that are allowed.", min=0)]
DivergenceOption = Annotated[
    str, typer.Option("--on-divergence", metavar="stop|record", help="What to do over the budget.")
]
EvidenceFileOption = Annotated[
    Path | None, typer.Option("--shadow-output", metavar="FILE", help="Write what was compared (JSON, atomically).")
]
CaptureOption = Annotated[
    list[str] | None,
    typer.Option("--capture", metavar="OP[@LAYER][:PHASE]", help="Save the first such call (repeatable)."),
]
CaptureFolderOption = Annotated[
    Path | None, typer.Option("--capture-dir", metavar="DIR", help="Where captured calls are saved.")
]


class Watch:
    """The shadows and captures of one run, from words to evidence. Refuses what it can before anything slow."""

    def __init__(
        self, shadow: list[str] | None, budget: int, on_divergence: str, evidence: Path | None,
        capture: list[str] | None, folder: Path | None,
    ) -> None:  # fmt: skip
        if on_divergence not in ("stop", "record"):
            raise typer.BadParameter("one of stop, record", param_hint="--on-divergence")
        self.on_divergence: OnDivergence = "stop" if on_divergence == "stop" else "record"
        if not shadow and (budget or evidence is not None or on_divergence == "stop"):
            raise typer.BadParameter("--shadow-budget, --on-divergence and --shadow-output go with --shadow")
        if bool(capture) != (folder is not None):
            raise typer.BadParameter("--capture and --capture-dir go together")
        if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise KernelmapError(
                Diagnostic("KM572", f"{folder} is no folder that can be written", help="give a folder that exists")
            )
        if evidence is not None and not os.access(evidence.parent, os.W_OK):
            raise KernelmapError(Diagnostic("KM572", f"cannot write {evidence}: its folder cannot be written"))
        self.words, self.budget, self.evidence = shadow or [], budget, evidence
        self.captures, self.folder = capture or [], folder
        self.chosen: tuple[Choice, ...] = ()
        self.wanted: frozenset[Wanted] = frozenset()
        self.shadow: Shadow | None = None
        self.capturer: Capturer | None = None

    def plan(self, plan: Plan, about: options.Subject, registry: Registry, host: Host) -> None:
        """What the words mean for a plan. Raises KernelmapError for what is refused or unknown."""
        self.registry, self.host, self.inventory = registry, host, about.inventory
        if not (self.words or self.captures):
            return
        from kernelmap.circuit.elaborate import elaborate
        from kernelmap.tracing.choosing import capture_calls, shadow_choices

        circuit = about.circuit
        elaborated = elaborate(circuit.circuit, circuit.source, about.inventory, registry.contracts, plan.options)
        self.chosen = shadow_choices(self.words, plan, elaborated, registry, host)
        self.wanted = capture_calls(self.captures, elaborated)

    @contextmanager
    def over(self, bound: BoundPlan, threads: int) -> Iterator[Probe | None]:
        """The probe of a session that runs inside; evidence is written at the end, also of a run that failed.

        Raises KernelmapError (KM577) if something that was asked for was never called.
        """
        if not (self.words or self.captures):
            yield None
            return
        from kernelmap.tracing.capture import Capturer, all_of

        if self.folder is not None:
            self.capturer = Capturer(bound, self.wanted, self.folder)
        self.shadow = self._shadow(bound) if self.words else None
        complete = False
        try:
            yield all_of(self.shadow.probe if self.shadow is not None else None, self.capturer)
            complete = True
        finally:
            self._write(threads, complete=complete)
        never = self.shadow.uncalled() if self.shadow is not None else []
        never += self.capturer.uncalled() if self.capturer is not None else []
        if never:
            raise KernelmapError(never)

    def _shadow(self, bound: BoundPlan) -> Shadow:
        from kernelmap.bind import bind_also
        from kernelmap.cli.progress import bar
        from kernelmap.tracing.shadow import Shadow

        with bar("bind shadows") as progress:
            others = bind_also(bound, self.chosen, self.registry, self.inventory, self.host, progress=progress)
        return Shadow(bound, self.chosen, others, budget=self.budget, on_divergence=self.on_divergence)

    def _write(self, threads: int, *, complete: bool) -> None:
        from kernelmap.tracing.shadow import write_evidence

        if self.shadow is None:
            return
        host = f"{self.host.arch} {self.host.cpu}, {self.host.cores} cores"
        self.made = self.shadow.evidence(self.registry, host, threads, complete=complete)
        if self.evidence is not None:
            write_evidence(self.made, self.evidence)

    @property
    def code(self) -> int:
        """Exit code of what was watched: a problem if shadows departed over their budget."""
        return PROBLEM if self.shadow is not None and not self.shadow.within_budget else CLEAN

    def value(self) -> dict[str, Any]:
        """What was watched, as JSON."""
        found: dict[str, Any] = {}
        if self.shadow is not None:
            found["shadow"] = self.made.model_dump(mode="json", by_alias=True, exclude={"schema_ref"})
        if self.capturer is not None:
            found["captured"] = sorted(map(str, self.capturer.files.values()))
        return found

    def tell(self) -> int:
        """Prints what was watched, and returns the exit code."""
        if self.shadow is not None:
            emit("\n".join(_shadow_lines(self.shadow, self.made.subjects)))
            if self.evidence is not None:
                emit(f"evidence in {self.evidence}")
        if self.capturer is not None:
            for path in sorted(self.capturer.files.values()):
                emit(f"captured {path}")
        if self.shadow is not None and self.code != CLEAN:
            from kernelmap.tracing.shadow import departure

            why = f"{self.shadow.departed} over a budget of {self.budget}; the first of them"
            report([departure(self.shadow.divergences[0], why)])
        return self.code


def _shadow_lines(shadow: Shadow, subjects: Any) -> Iterator[str]:
    yield ""
    yield f"shadows: {shadow.calls} calls compared, {shadow.departed} depart (budget {shadow.budget})"
    for item in subjects:
        layers = f" layers {item.layers}" if item.layers else ""
        yield f"  {item.op} {item.phase.value}{layers}"
        yield f"    {item.production} runs"
        error = f"{item.max_error:.3g}" if isinstance(item.max_error, float) else item.max_error
        yield f"    {item.candidate} beside it"
        yield f"    {item.calls} calls, {item.departed} depart, largest difference {error}"
