"""The pool's jitted half: dispatch, barrier, and the loop in which a worker waits, works and parks.

Memory: one control block of int64 words, a slot of 64 words a thread. Slot 0 holds the job; slot i the worker i.

    slot 0:  0 lock   8 barrier arrivals   16 task  17 params  18 thread count   24 workers done
    slot i:  0 sequence   1 parked   2 core   8.. mutex (64 bytes)   16.. condition variable (64 bytes)   32.. CPU masks

A worker spins for some ten microseconds after a job, which is what lies between two operations of a running session,
then sleeps on its condition variable: an idle worker that polls slowed everything else on the machine by up to 40 %.
"""

from __future__ import annotations

from typing import Any

from kernelmap_providers.jit.compile import entry, jit
from kernelmap_providers.pool.placement import spread
from kernelmap_providers.simd import native

SLOT_BYTES = 512
_LOCK, _ARRIVALS, _TASK, _DONE = 0, 64, 128, 192
_PARKED, _CPU, _MUTEX, _CONDITION, _MASKS = 8, 16, 64, 128, 256
SPINS_BEFORE_PARKING = 2000
SPINS_BEFORE_YIELDING = 300
SPINS_BEFORE_NAPPING = 1000
NAP_MICROSECONDS = 50
"""More threads than free cores, and other processes at work: threads that only yielded to one another spent most of the
time in the kernel (a test run of 20 s took 10 minutes), so a long wait sleeps instead."""


@jit
def wait_until(address: int, target: int) -> None:
    """Wait until the word at ``address`` is at least ``target``: others work on it, so spin, then yield, then nap."""
    spins = 0
    while native.atomic_load(address) < target:
        native.spin_pause()
        spins += 1
        if spins > SPINS_BEFORE_NAPPING:
            native.sleep_microseconds(NAP_MICROSECONDS)
        elif spins > SPINS_BEFORE_YIELDING:
            native.yield_core()


@jit
def barrier(control: int, count: int) -> None:
    """Wait until all ``count`` threads of the job have come here. Called by all of them or none."""
    if count > 1:
        arrivals = native.atomic_add(control + _ARRIVALS, 1) + 1
        wait_until(control + _ARRIVALS, (arrivals + count - 1) // count * count)


@jit
def _wake(slot: int) -> None:
    native.atomic_add(slot, 1)
    if native.atomic_load(slot + _PARKED):
        native.mutex_lock(slot + _MUTEX)
        native.condition_signal(slot + _CONDITION)
        native.mutex_unlock(slot + _MUTEX)


@jit
def dispatch(control: int, task: int, params: int, count: int) -> None:
    """Run ``task(params, index, count, control)`` on ``count`` threads, the calling one among them, and wait.

    Where another thread holds the pool, or ``count`` is 1, the caller does the whole work alone: the same bytes come
    out, nothing waits for a lock, and the machine runs no more threads than the pool has.
    """
    if count <= 1 or native.atomic_swap(control + _LOCK, 1) != 0:
        native.call_task(task, params, 0, 1, control)
        return
    native.atomic_swap(control + _ARRIVALS, 0)
    native.atomic_swap(control + _DONE, 0)
    native.atomic_swap(control + _TASK, task)
    native.atomic_swap(control + _TASK + 8, params)
    native.atomic_swap(control + _TASK + 16, count)
    spread(control, 0, SLOT_BYTES, _CPU, _MASKS)
    for index in range(1, count):
        _wake(control + SLOT_BYTES * index)
    native.call_task(task, params, 0, count, control)
    wait_until(control + _DONE, count - 1)
    native.atomic_swap(control + _LOCK, 0)


@jit
def _next_job(slot: int, seen: int) -> Any:
    """The worker's next sequence number: spin for a while, then sleep."""
    for _ in range(SPINS_BEFORE_PARKING):
        if native.atomic_load(slot) != seen:
            return native.atomic_load(slot)
        native.spin_pause()
    native.mutex_lock(slot + _MUTEX)
    native.atomic_swap(slot + _PARKED, 1)
    while native.atomic_load(slot) == seen:
        native.condition_wait(slot + _CONDITION, slot + _MUTEX)
    native.atomic_swap(slot + _PARKED, 0)
    native.mutex_unlock(slot + _MUTEX)
    return native.atomic_load(slot)


@entry
def work(control: int, index: int) -> Any:
    """Worker ``index``'s life: job after job. Never returns, never holds the GIL."""
    slot = control + SLOT_BYTES * index
    seen = 0
    while True:
        seen = _next_job(slot, seen)
        spread(control, index, SLOT_BYTES, _CPU, _MASKS)
        task, params = native.load_word(control + _TASK), native.load_word(control + _TASK + 8)
        native.call_task(task, params, index, native.load_word(control + _TASK + 16), control)
        native.atomic_add(control + _DONE, 1)
    return seen


@entry
def prepare(control: int, slots: int) -> Any:
    """Initialise the mutexes and condition variables of a zeroed control block."""
    for index in range(slots):
        native.mutex_init(control + SLOT_BYTES * index + _MUTEX, 0)
        native.condition_init(control + SLOT_BYTES * index + _CONDITION, 0)
    return 0
