"""The worker pool: every thread runs, phases meet, callers on several Python threads and forked children are safe."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import Any

import numpy as np
import pytest
from numba import types

from kernelmap_providers.jit.compile import compiled, entry, native_address
from kernelmap_providers.pool.control import barrier, dispatch
from kernelmap_providers.pool.workers import MAX_THREADS, POOL, WorkerPool
from kernelmap_providers.simd import native, ops
from kernelmap_providers.simd.static import StaticType

PHASES = 20
WORD = types.int64


@entry
def phases_task(_leg: Any, params: int, index: int, count: int, control: int) -> int:
    """In each phase everyone adds 1, meets, and checks that all have added; word 1 counts failures."""
    for phase in range(PHASES):
        native.atomic_add(params, 1)
        barrier(control, count)
        if native.atomic_load(params) < (phase + 1) * count:
            native.atomic_add(params + 8, 1)
        barrier(control, count)
    ops.store(params + 16 + 8 * index, 1 + index)
    return 0


@entry
def start(control: int, task: int, params: int, count: int) -> int:
    dispatch(control, task, params, count)
    return 0


def run(threads: int) -> np.ndarray:
    task = native_address(phases_task, StaticType(("test",)), WORD, WORD, WORD, WORD)
    words = np.zeros(2 + MAX_THREADS, np.int64)
    compiled(start, WORD, WORD, WORD, WORD)(POOL.control(threads), task, words.ctypes.data, threads)
    return words


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_all_threads_meet_in_every_phase(threads: int) -> None:
    for _ in range(20):
        words = run(threads)
        assert words[0] == PHASES * threads
        assert words[1] == 0
        assert words[2 : 2 + threads].tolist() == list(range(1, threads + 1))


def test_callers_on_several_python_threads() -> None:
    """One gets the pool, the others work alone; nobody waits for ever and all work is done."""
    results: list[np.ndarray] = []

    def loop() -> None:
        for _ in range(100):
            results.append(run(2))

    callers = [threading.Thread(target=loop) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert len(results) == 400
    assert all(words[0] in (PHASES, 2 * PHASES) and words[1] == 0 for words in results)


def test_a_forked_child_has_its_own_pool() -> None:
    run(2)
    child = os.fork()
    if child == 0:
        os._exit(0 if run(2)[0] == 2 * PHASES else 1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert run(2)[0] == 2 * PHASES


def test_idle_workers_cost_nothing() -> None:
    run(3)
    time.sleep(0.05)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(0.5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.05


@pytest.mark.parametrize("threads", [0, -1, MAX_THREADS + 1])
def test_thread_counts_outside_the_pool(threads: int) -> None:
    with pytest.raises(ValueError, match="between 1 and"):
        WorkerPool().control(threads)
