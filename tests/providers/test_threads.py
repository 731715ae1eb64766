"""The pool of parked threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from kernelmap_providers.threads import run_ranges


@pytest.mark.parametrize(("count", "threads"), [(0, 4), (1, 4), (3, 8), (10, 3), (100, 7), (5, 1)])
def test_parts_cover_the_whole_once(count: int, threads: int) -> None:
    seen: list[tuple[int, int, int]] = []

    def kernel(begin: int, end: int, worker: int, _tag: str) -> int:
        seen.append((begin, end, worker))
        return 0

    assert run_ranges(kernel, count, threads, "tag") == 0
    seen.sort()
    assert [item for begin, end, _ in seen for item in range(begin, end)] == list(range(count))
    assert [worker for _, _, worker in seen] == list(range(min(count, threads)))


def test_least_nonzero_status_wins() -> None:
    def kernel(begin: int, end: int, _worker: int) -> int:
        bad = [row for row in (9, 4, 7) if begin <= row < end]
        return min(bad) + 1 if bad else 0

    for threads in (1, 2, 3, 5, 10):
        assert run_ranges(kernel, 10, threads) == 5


def test_parts_really_run_at_once() -> None:
    """Each part waits for the other: one thread alone would never get past the barrier."""
    barrier = threading.Barrier(2, timeout=20)

    def kernel(_begin: int, _end: int, _worker: int) -> int:
        barrier.wait()
        return 0

    assert run_ranges(kernel, 2, 2) == 0


def test_an_error_reaches_the_caller_when_all_parts_have_ended() -> None:
    ended: list[int] = []

    def kernel(begin: int, _end: int, worker: int) -> int:
        if worker == 0:
            raise RuntimeError("broken part")
        time.sleep(0.05)
        ended.append(begin)
        return 0

    with pytest.raises(RuntimeError, match="broken part"):
        run_ranges(kernel, 2, 2)
    assert ended == [1]
    assert run_ranges(lambda _b, _e, _w: 0, 4, 4) == 0


def test_safe_from_many_python_threads() -> None:
    def kernel(begin: int, end: int, _worker: int, base: int) -> int:
        return base + end if end == 50 and begin < end else 0

    results: dict[int, set[int]] = {}

    def caller(base: int) -> None:
        results[base] = {run_ranges(kernel, 50, 4, base) for _ in range(200)}

    callers = [threading.Thread(target=caller, args=(1000 * i,)) for i in range(8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(60)
    assert results == {1000 * i: {1000 * i + 50} for i in range(8)}


def in_child(check: Callable[[], bool]) -> bool:
    """Whether ``check`` holds in a forked child, which must answer in time."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return False


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_gets_a_pool_of_its_own() -> None:
    def kernel(begin: int, _end: int, _worker: int) -> int:
        return begin + 1 if begin else 0

    assert run_ranges(kernel, 2, 2) == 2
    assert in_child(lambda: run_ranges(kernel, 2, 2) == 2)
    assert run_ranges(kernel, 2, 2) == 2


def test_idle_workers_take_no_time() -> None:
    run_ranges(lambda _b, _e, _w: 0, 4, 4)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05
