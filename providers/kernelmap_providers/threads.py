"""Running range kernels on several threads.

A range kernel is jitted without the GIL and called as ``kernel(begin, end, worker, *args) -> int``. It works on items
``begin`` to ``end - 1`` of a whole, may use slice ``worker`` of a scratch buffer, waits for nobody, and returns 0 or
1 + the least bad row that it met. What an item computes must depend on the item alone, so that no result depends on
the number of threads.

Workers are Python threads that sleep in a queue: an idle one costs nothing, and a wake-up some ten microseconds.
(A worker that polls while idle slowed everything else on a small machine by up to 40 %.)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

RangeKernel = Callable[..., int]
Outcome = tuple[int, BaseException | None]


@dataclass(frozen=True, slots=True)
class _Job:
    kernel: RangeKernel
    begin: int
    end: int
    worker: int
    args: tuple[Any, ...]
    done: SimpleQueue[Outcome]

    def run(self) -> None:
        try:
            self.done.put((int(self.kernel(self.begin, self.end, self.worker, *self.args)), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            self.done.put((0, error))


@dataclass(slots=True)
class _Pool:
    """Parked threads, as many as were ever needed at once, up to the machine's. Jobs wait where all are busy."""

    jobs: SimpleQueue[_Job] = field(default_factory=SimpleQueue)
    lock: Lock = field(default_factory=Lock)
    size: int = 0

    def reserve(self, count: int) -> None:
        """Starts threads until there are ``count``, or one for each processor."""
        if self.size >= count:
            return
        with self.lock:
            while self.size < min(count, os.cpu_count() or 1):
                Thread(target=self._work, name=f"kernelmap-{self.size}", daemon=True).start()
                self.size += 1

    def _work(self) -> None:
        jobs = self.jobs
        while True:
            jobs.get().run()


_pool = _Pool()


def _forget() -> None:
    """In a forked child: the parent's threads do not exist here, and its locks may be held for ever."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_forget)


def run_ranges(kernel: RangeKernel, count: int, threads: int, *args: Any) -> int:
    """Runs ``kernel`` over ``range(count)`` cut into at most ``threads`` contiguous parts of nearly equal size.

    Part i is run with ``worker = i`` below ``threads``; part 0 in the calling thread. Returns the least nonzero status,
    or 0. Safe from several Python threads at once. Raises what a kernel raises, after all parts have ended: no part
    still writes when this returns.
    """
    parts = min(threads, count)
    if parts <= 1:
        return int(kernel(0, count, 0, *args)) if count > 0 else 0
    pool = _pool
    pool.reserve(parts - 1)
    done: SimpleQueue[Outcome] = SimpleQueue()
    bounds = [count * part // parts for part in range(parts + 1)]
    for part in range(1, parts):
        pool.jobs.put(_Job(kernel, bounds[part], bounds[part + 1], part, args, done))
    _Job(kernel, 0, bounds[1], 0, args, done).run()
    outcomes = _all_of(done, parts)
    for _, error in outcomes:
        if error is not None:
            raise error
    return min((status for status, _ in outcomes if status), default=0)


def _all_of(done: SimpleQueue[Outcome], count: int) -> list[Outcome]:
    """Every outcome; an interrupt while waiting is raised when the last part has ended."""
    outcomes: list[Outcome] = []
    interrupt: BaseException | None = None
    while len(outcomes) < count:
        try:
            outcomes.append(done.get())
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return outcomes
