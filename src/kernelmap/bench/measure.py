"""Measuring: every eligible provider of a spot, run in sessions, compared, then timed in interleaved rounds."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kernelmap.bench.spots import Spot, Verdict, sizes_text
from kernelmap.bench.stage import Stage, copies_for, inputs_of, stage, stored_size
from kernelmap.bind import BoundPlan, bind
from kernelmap.certify.trial import compare
from kernelmap.certify.weights import Array
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.models.bench import BenchCase, BenchIneligible, BenchTimes
from kernelmap.models.contract import Contract
from kernelmap.models.host import Host
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.policy import Pin, Policy, PolicyRoute
from kernelmap.registry import Registry
from kernelmap.resolver import resolve
from kernelmap.session import Session
from kernelmap.vocabulary import Phase, Status

BLOCK_SECONDS = 0.01
"""Least duration of one provider's part of a round; short kernels are repeated to fill it."""
MEMORY_PART = 0.8
"""Part of the host's memory that weights and prepared weights may take."""
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a bench runs."""

    threads: tuple[int, ...]
    tokens: tuple[int, ...]
    """Rows of a prefill call; decode has one."""
    rounds: int
    phases: tuple[Phase, ...] = (Phase.PREFILL, Phase.DECODE)
    copies: int | None = None
    """Different weights to cycle through; None: as many as exceed the caches."""
    block_seconds: float = BLOCK_SECONDS


@dataclass(slots=True)
class Progress:
    """Counts cases over all spots of a bench."""

    report: Report
    total: int
    done: int = 0

    def step(self, what: str, count: int = 0) -> None:
        """Says what is being done, ``count`` cases further on."""
        self.done += count
        self.report(what, self.done, self.total)


def case_count(spot: Spot, setting: Setting) -> int:
    """How many cases a spot makes."""
    tokens = {Phase.PREFILL: len(setting.tokens), Phase.DECODE: 1}
    return sum(tokens[phase] * len(setting.threads) for phase in setting.phases if phase in spot.verdicts)


def measure(spot: Spot, registry: Registry, host: Host, setting: Setting, progress: Progress) -> Iterator[BenchCase]:
    """The cases of a spot, phase by phase. A provider that cannot be bound, or gives other outputs than the first, is
    recorded as refused and not timed.

    Raises KernelmapError: KM583 no call can be made, KM585 too large for memory, KM586 no room for temporary weights.
    """
    for phase in setting.phases:
        verdict = spot.verdicts.get(phase)
        if verdict is None:
            continue
        copies = setting.copies or copies_for(stored_size(spot))
        items = [registry.maps[name] for name in verdict.eligible]
        _check_memory(spot, items, copies, host)
        with stage(spot, phase, copies) as made:
            refused: dict[str, str] = {}
            plans: dict[str, BoundPlan] = {}
            for item in items:
                progress.step(f"bind {item.id}")
                try:
                    plans[item.id] = _bound(made, phase, item, registry, host)
                except Exception as error:  # noqa: BLE001  # a provider's own code may raise anything
                    refused[item.id] = _told(error)
            for tokens in setting.tokens if phase is Phase.PREFILL else (1,):
                for threads in setting.threads:
                    progress.step(f"{phase.value} {spot.op} {tokens} x {threads}")
                    yield _case(made, phase, verdict, plans, refused, tokens, threads, setting)
                    progress.step("", 1)


def _check_memory(spot: Spot, items: Sequence[KernelMap], copies: int, host: Host) -> None:
    stored = stored_size(spot)
    prepared = sum(prepared_bytes(item, spot.dims) for item in items)
    need, room = copies * (stored + prepared), int(host.memory_bytes * MEMORY_PART)
    if room and need > room:
        message = (
            f"{spot.source} ({sizes_text(spot.dims)}) takes {need / 2**30:.1f} GiB of weights, as stored and prepared "
            f"by {len(items)} providers, and {room / 2**30:.1f} GiB may be used"
        )
        help = "fewer --copies, a smaller --shape, or --exclude providers"
        raise KernelmapError(Diagnostic("KM585", message, help=help))


def prepared_bytes(item: KernelMap, dims: Mapping[str, int]) -> int:
    """Bytes of a provider's prepared weights for one op."""
    return sum(len(hook.weights) * hook.prepared_bytes.evaluate(dims) for hook in item.weight_preparation)


def _bound(made: Stage, phase: Phase, item: KernelMap, registry: Registry, host: Host) -> BoundPlan:
    """A provider bound on the stage, pinned and, if it is a candidate, routed; every other rule of the policy holds."""
    spot = made.spot
    given = spot.policy
    routes = (PolicyRoute(op=spot.op, allow=item.id),) if item.selection.status is Status.CANDIDATE else ()
    policy = Policy(routes=routes, pin=(Pin(op=spot.op, id=item.id),), exclude=given.exclude, evidence=given.evidence,
                    kill_switches=given.kill_switches)  # fmt: skip
    plan = resolve(made.circuit.circuit, made.circuit.source, made.inventory, registry, host, policy)
    environ = {**os.environ, **dict.fromkeys(given.kill_switches, "1")}  # a policy file may set them, too
    bound = bind(plan, made.circuit, registry, made.inventory, host=host, environ=environ, check_weights=False)
    assert {op.map.id for op in bound.steps[phase]} == {item.id}
    return bound


def _case(
    made: Stage, phase: Phase, verdict: Verdict, plans: Mapping[str, BoundPlan], refused: Mapping[str, str],
    tokens: int, threads: int, setting: Setting,
) -> BenchCase:  # fmt: skip
    spot = made.spot
    inputs = inputs_of(spot, tokens)
    calls = {name: _Call(Session(plan, threads), phase, inputs) for name, plan in plans.items()}
    sound, differing = _agreeing(spot.contract, calls, verdict.incumbent)
    samples = _rounds([calls[name] for name in sound], setting)
    times = tuple(_times(name, calls[name], samples[calls[name]], plans[name], made.copies) for name in sound)
    return BenchCase(
        op=spot.op, group=spot.contract.equivalence_group, phase=phase,
        dims={**spot.dims, **dict.fromkeys(spot.contract.dynamic_dims, tokens)}, params=dict(spot.params),
        source=spot.source, threads=threads, copies=made.copies, incumbent=verdict.incumbent, times=times,
        ineligible=tuple(BenchIneligible(provider=n, reasons=why) for n, why in verdict.ineligible.items()),
        refused={**refused, **differing},
    )  # fmt: skip


def _times(
    name: str, call: _Call, samples: Sequence[tuple[float, float]], plan: BoundPlan, copies: int
) -> BenchTimes:  # fmt: skip
    return BenchTimes(
        provider=name,
        variant=call.variant,
        seconds=tuple(float(f"{seconds:.5g}") for seconds, _ in samples),
        cpu_per_wall=round(median(cpu for _, cpu in samples), 2),
        prepared_bytes=plan.prepared_bytes // copies,
    )


class _Call:
    """A session's call on a cycle of inputs, timed kernel by kernel."""

    def __init__(self, session: Session, phase: Phase, inputs: Sequence[Mapping[str, Array]]) -> None:
        self.session, self.inputs = session, inputs
        self.run = session.prefill if phase is Phase.PREFILL else session.decode
        self.outputs: dict[str, Array] = {}
        self.repeats = 1

    @property
    def variant(self) -> str:
        """The variant of the last call."""
        return self.session.trace[-1].variant

    def first(self) -> None:
        """Compiles, keeps the outputs of the first inputs, and checks that nothing else ran than was selected."""
        self.outputs = self.run(self.inputs[0])
        self.session.check_counters()

    def warm(self, seconds: float) -> None:
        """A second call, by which repeats are set so that a block lasts at least ``seconds``: whole cycles of inputs,
        or less than one where a single call lasts long.
        """
        started = time.perf_counter()
        self.run(self.inputs[-1])
        repeats = max(1, math.ceil(seconds / max(time.perf_counter() - started, 1e-7)))
        cycle = len(self.inputs)
        self.repeats = repeats if repeats < cycle else math.ceil(repeats / cycle) * cycle

    def block(self, number: int) -> tuple[float, float]:
        """(mean seconds a kernel call, CPU time / wall time) of a block of calls, from the ``number``-th inputs on."""
        self.session.trace.clear()
        cpu, wall = time.process_time(), time.perf_counter()
        for index in range(number, number + self.repeats):
            self.run(self.inputs[index % len(self.inputs)])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        trace = self.session.trace
        return sum(entry.seconds for entry in trace) / len(trace), cpu / wall


def _agreeing(
    contract: Contract, calls: Mapping[str, _Call], incumbent: str | None
) -> tuple[list[str], dict[str, str]]:
    """(providers whose outputs agree, provider to why it is not timed). The incumbent, or else the first, sets them."""
    failed: dict[str, str] = {}
    order = sorted(calls, key=lambda name: name != incumbent)
    base: _Call | None = None
    first = ""
    for name in order:
        try:
            calls[name].first()
        except Exception as error:  # noqa: BLE001  # as above
            failed[name] = _told(error)
            continue
        if base is None:
            base, first = calls[name], name
            continue
        texts = [text for copy in range(_copies(base)) for text in _differences(contract, base, calls[name], copy)]
        if texts:
            failed[name] = f"outputs differ from those of {first}: {texts[0]}"
    return [name for name in calls if name not in failed], failed


def _told(error: Exception) -> str:
    """Why a provider is not timed, in one line that a record takes."""
    if isinstance(error, KernelmapError):
        return "; ".join(f"{item.code} {item.message}" for item in error.diagnostics)[:2000]
    return f"raised {type(error).__name__}: {error}".replace("\n", " ")[:2000]


def _copies(call: _Call) -> int:
    return 1 + max(int(name.rpartition("/")[2]) for name in call.outputs)


def _differences(contract: Contract, base: _Call, other: _Call, copy: int) -> list[str]:
    names = [port.name for port in contract.outputs]
    want = {name: base.outputs[f"{name}/{copy}"] for name in names}
    have = {name: other.outputs[f"{name}/{copy}"] for name in names}
    return compare(contract, want, have, sides=2)[1]


def _rounds(calls: Sequence[_Call], setting: Setting) -> dict[_Call, list[tuple[float, float]]]:
    """Interleaved rounds: each round runs every provider once, beginning with another one each time."""
    for call in calls:
        call.warm(setting.block_seconds)
    found: dict[_Call, list[tuple[float, float]]] = {call: [] for call in calls}
    for number in range(setting.rounds):
        turn = number % max(1, len(calls))
        for call in (*calls[turn:], *calls[:turn]):
            found[call].append(call.block(number))
    return found
