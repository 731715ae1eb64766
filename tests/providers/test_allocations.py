"""Calls of routers and expert blocks through a session: no array, nothing of Numba's runtime, no growth."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from calling import BUCKETED, DATA, SIGMOID, Subject
from counting import Counts, counted_data, counting
from numba import njit
from numba.core.runtime import _nrt_python as nrt

from kernelmap.bind import BoundPlan, bind
from kernelmap.circuit.loading import circuit_for
from kernelmap.host import probe_host
from kernelmap.inventory import read_inventory
from kernelmap.models.policy import Policy, PolicyRoute
from kernelmap.recorded import Recording
from kernelmap.registry import load_registry
from kernelmap.resolver import resolve
from kernelmap.session import Session
from kernelmap.vocabulary import Phase

CALLS = 1000
OPS = ("router", "routed_experts", "shared_experts")
WARM = 40
"""Calls after which the interpreter's own caches have settled."""
PYTHON_BYTES = 8192
"""Views and numbers of one call. They do not grow with rows: an array of one hidden row a token would not fit."""


@pytest.fixture
def statistics() -> Iterator[None]:
    """Every kind of statistics on."""
    enabled = nrt.memsys_stats_enabled()
    nrt.memsys_enable_stats()
    tracemalloc.start(1)
    try:
        with counted_data():
            yield
    finally:
        tracemalloc.stop()
        if not enabled:
            nrt.memsys_disable_stats()


def counted_plan(routes: tuple[PolicyRoute, ...], counts: dict[str, Counts]) -> BoundPlan:
    """The bundled model's plan, its routers and expert blocks counting."""
    circuit, model, registry = (
        circuit_for("qwen35moe"),
        read_inventory(DATA / "models" / "qwen35moe.gguf"),
        load_registry(),
    )
    plan = resolve(circuit.circuit, circuit.source, model, registry, probe_host(), Policy(routes=routes))
    bound = bind(plan, circuit, registry, model)
    steps = {}
    for phase, ops in bound.steps.items():
        made = []
        for op in ops:
            if op.decision.name in OPS:
                mine = counts.setdefault(op.decision.name, Counts())
                op = replace(op, variants=tuple(replace(v, run=counting(v.run, mine)) for v in op.variants))
            made.append(op)
        steps[phase] = tuple(made)
    return replace(bound, steps=steps)


def held() -> int:
    """Bytes of all that Python and NumPy hold."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def assert_nothing_allocated(counts: Counts, calls: int) -> None:
    assert counts.calls >= calls
    assert (counts.data, counts.runtime) == (0, 0)
    assert counts.most_bytes < PYTHON_BYTES


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bucketed", [False, True], ids=["stored", "bucketed"])
def test_a_thousand_calls_of_a_session_allocate_nothing_in_kernels(
    bucketed: bool, threads: int, statistics: None
) -> None:
    counts: dict[str, Counts] = {}
    phase = Phase.PREFILL if bucketed else Phase.DECODE
    routes = (PolicyRoute(op="routed_experts", phase=phase, allow=BUCKETED),) if bucketed else ()
    bound = counted_plan(routes, counts)
    given = Recording(DATA / "models" / "qwen35moe.acts.npz").inputs(bound.elaborated, phase)
    session = Session(bound, threads=threads)
    call = session.prefill if bucketed else session.decode
    for _ in range(WARM):
        call(given)
    for mine in counts.values():
        mine.reset()
    before = held()
    while counts["routed_experts"].calls < CALLS:
        call(given)
        session.trace.clear()
    # Less than a byte a call: no call left anything behind.
    assert held() - before < CALLS
    assert set(counts) == set(OPS)
    for mine in counts.values():
        assert_nothing_allocated(mine, CALLS)


def test_a_sigmoid_router_with_groups_allocates_nothing(statistics: None) -> None:
    params = {"n_group": 4, "topk_group": 2, "renormalize": "clamp", "scale": 2.5}
    subject = Subject(SIGMOID, {"E": 160, "K": 6}, params)
    rng = np.random.default_rng(0)
    logits, bias = rng.standard_normal((33, 160)).astype(np.float32), np.zeros(160, np.float32)
    counts = Counts()
    run = counting(runner(subject), counts)
    outputs = np.zeros((33, 6), np.int32), np.zeros((33, 6), np.float32)
    scratch = np.zeros(1 << 17, np.uint8)
    for _ in range(WARM):
        run(logits, bias, *outputs, scratch, 2)
    counts.reset()
    before = held()
    for _ in range(CALLS):
        assert run(logits, bias, *outputs, scratch, 2) == 0
    # Less than a byte a call: no call left anything behind.
    assert held() - before < CALLS
    assert_nothing_allocated(counts, CALLS)


def runner(subject: Subject) -> Callable[..., int]:
    from kernelmap.bind import load_runner

    return load_runner(subject.item, subject.contract, subject.spec("parallel_rows"))


@njit
def made_in_numba(size: int) -> int:
    return len(np.empty(size))


def test_each_count_counts(statistics: None) -> None:
    """What a careless kernel would do is seen: a temporary array, one in jitted code, large Python objects."""
    made_in_numba(1)

    def temporary() -> int:
        return int(np.empty(4).size)

    counts = {name: Counts() for name in ("temporary", "numba", "large")}
    assert_nothing_allocated(Counts(calls=10), 10)
    for _ in range(10):
        counting(temporary, counts["temporary"])()
        counting(lambda: made_in_numba(4), counts["numba"])()
        counting(lambda: len(bytes(PYTHON_BYTES)), counts["large"])()
    assert counts["temporary"].data == 10
    assert counts["numba"].runtime == 10
    assert counts["large"].most_bytes > PYTHON_BYTES > counts["temporary"].most_bytes
    for mine in counts.values():
        with pytest.raises(AssertionError):
            assert_nothing_allocated(mine, 10)
