"""Arena planning: buffers whose lifetimes do not meet share memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

GUARD_BYTES = 64
"""Bytes kept free behind every buffer; tests fill them with a pattern and look for overwrites."""


@dataclass(frozen=True, slots=True)
class Request:
    """A buffer that is needed from step ``first`` to step ``last``, both included."""

    key: str
    size: int
    alignment: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Offset of each buffer in one arena of ``size`` bytes."""

    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    size: int
    alignment: int


def plan_arena(requests: Iterable[Request]) -> Layout:
    """Best-fit over free gaps in order of first use; deterministic. Raises ValueError for two requests of one key.

    Not minimal (that is NP-hard): buffers are placed as they come up, in the smallest gap that holds them.
    """
    offsets: dict[str, int] = {}
    sizes: dict[str, int] = {}
    live: list[tuple[int, int, int]] = []  # (offset, end, last), sorted by offset
    total, alignment = 0, 1
    for request in sorted(requests, key=lambda r: (r.first, -r.size, r.key)):
        if request.key in offsets:
            raise ValueError(f"two buffers are called {request.key!r}")
        live = [block for block in live if block[2] >= request.first]
        offset = _place(live, request)
        end = offset + request.size + GUARD_BYTES
        live.append((offset, end, request.last))
        live.sort()
        offsets[request.key], sizes[request.key] = offset, request.size
        total, alignment = max(total, end), max(alignment, request.alignment)
    return Layout(offsets, sizes, total, alignment)


def _place(live: list[tuple[int, int, int]], request: Request) -> int:
    need = request.size + GUARD_BYTES
    best: tuple[int, int] | None = None
    position = 0
    for start, end, _ in live:
        offset = _aligned(position, request.alignment)
        if start - offset >= need and (best is None or start - position < best[0]):
            best = (start - position, offset)
        position = max(position, end)
    return best[1] if best is not None else _aligned(position, request.alignment)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
