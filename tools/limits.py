"""What this machine can do at most: byte products from registers, and bytes a second read from memory.

    python tools/limits.py

The benchmarks print their figures as fractions of these.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.static import Static
from kernelmap_providers.simd.target import host_form
from kernelmap_providers.simd.vectors import I8X32, I8X64

FORM = host_form()
STATIC_FORM = Static(FORM.name)
WIDE = Static("i32", 16), Static("i32", 8)
STEPS = 200_000
READ_BYTES = 512 << 20


@jit
def _dots64(steps: int, seed: int) -> int:
    w, x = ops.fill(I8X64, np.int8(seed)), ops.fill(I8X64, np.int8(seed + 1))
    zero = ops.fill(WIDE[0], np.int32(0))
    a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
    for _ in range(steps):
        a, b = ops.dot4(STATIC_FORM, a, w, x), ops.dot4(STATIC_FORM, b, w, x)
        c, d = ops.dot4(STATIC_FORM, c, w, x), ops.dot4(STATIC_FORM, d, w, x)
        e, f = ops.dot4(STATIC_FORM, e, w, x), ops.dot4(STATIC_FORM, f, w, x)
        g, h = ops.dot4(STATIC_FORM, g, w, x), ops.dot4(STATIC_FORM, h, w, x)
    ab, cd = ops.bit_xor(a, b), ops.bit_xor(c, d)
    ef, gh = ops.bit_xor(e, f), ops.bit_xor(g, h)
    return ops.lane(ops.bit_xor(ops.bit_xor(ab, cd), ops.bit_xor(ef, gh)), 0)


@jit
def _dots32(steps: int, seed: int) -> int:
    w, x = ops.fill(I8X32, np.int8(seed)), ops.fill(I8X32, np.int8(seed + 1))
    zero = ops.fill(WIDE[1], np.int32(0))
    a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
    for _ in range(steps):
        a, b = ops.dot4(STATIC_FORM, a, w, x), ops.dot4(STATIC_FORM, b, w, x)
        c, d = ops.dot4(STATIC_FORM, c, w, x), ops.dot4(STATIC_FORM, d, w, x)
        e, f = ops.dot4(STATIC_FORM, e, w, x), ops.dot4(STATIC_FORM, f, w, x)
        g, h = ops.dot4(STATIC_FORM, g, w, x), ops.dot4(STATIC_FORM, h, w, x)
    ab, cd = ops.bit_xor(a, b), ops.bit_xor(c, d)
    ef, gh = ops.bit_xor(e, f), ops.bit_xor(g, h)
    return ops.lane(ops.bit_xor(ops.bit_xor(ab, cd), ops.bit_xor(ef, gh)), 0)


@jit
def _read(address: int, count: int) -> int:
    a = b = c = d = ops.fill(WIDE[1], np.int32(0))
    for at in range(address, address + count, 128):
        a, b = ops.bit_xor(a, ops.load(WIDE[1], at)), ops.bit_xor(b, ops.load(WIDE[1], at + 32))
        c, d = ops.bit_xor(c, ops.load(WIDE[1], at + 64)), ops.bit_xor(d, ops.load(WIDE[1], at + 96))
    return ops.lane(ops.bit_xor(ops.bit_xor(a, b), ops.bit_xor(c, d)), 0)


def integer_peak() -> float:
    """GMAC/s of one thread: dot steps of the host's form on registers alone."""
    kernel, products = (_dots64, 64) if FORM.lanes == 16 else (_dots32, 32)
    kernel(10, 3)
    times = []
    for _ in range(9):
        start = time.perf_counter()
        kernel(STEPS, 3)
        times.append(time.perf_counter() - start)
    return 8 * products * STEPS / statistics.median(times) / 1e9


def memory_read(threads: int) -> float:
    """GB/s read from memory by so many threads together."""
    data = np.ones(READ_BYTES // 4, np.float32)
    share = READ_BYTES // threads // 128 * 128
    _read(data.ctypes.data, 1280)
    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(lambda i: _read(data.ctypes.data + i * share, share), range(threads)))
            times.append(time.perf_counter() - start)
    return share * threads / statistics.median(times) / 1e9


def limits(threads: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """Every limit, by name."""
    return {"form": FORM.name, "gmacs_1": integer_peak(), **{f"read_gb_{n}": memory_read(n) for n in threads}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(json.dumps({k: round(v, 1) if isinstance(v, float) else v for k, v in limits().items()}, indent=1))
