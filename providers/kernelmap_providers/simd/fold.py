"""Eight vectors of partial sums into one vector of eight sums. Integers only, so the order of adding is free."""

from __future__ import annotations

from kernelmap_providers.simd.emit import Emitter, Value

_EVEN, _ODD = (0, 2, 8, 10, 4, 6, 12, 14), (1, 3, 9, 11, 5, 7, 13, 15)
_LOW, _HIGH = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)


def add_neighbours(e: Emitter, a: Value, b: Value) -> Value:
    """Sums of adjacent int32 lanes, interleaved by 128-bit halves as x86's horizontal add has them."""
    return e.b.add(e.shuffle(a, b, _EVEN), e.shuffle(a, b, _ODD))


class Fold:
    """Takes eight int32x8 vectors one by one; merges as soon as two of a kind are there, so that few are live."""

    def __init__(self, e: Emitter) -> None:
        self.e = e
        self.waiting: list[tuple[int, Value]] = []

    def push(self, value: Value) -> None:
        """The next vector."""
        level = 0
        while self.waiting and self.waiting[-1][0] == level:
            _, before = self.waiting.pop()
            if level == 2:
                value = self.e.b.add(self.e.shuffle(before, value, _LOW), self.e.shuffle(before, value, _HIGH))
            else:
                value = add_neighbours(self.e, before, value)
            level += 1
        self.waiting.append((level, value))

    def lanes(self) -> Value:
        """The eight sums, in the order of the pushes."""
        return self.waiting[0][1]
