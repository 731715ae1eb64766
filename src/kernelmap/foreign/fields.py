"""A parsed file of another engine, and the record of what of it was carried over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kernelmap.models.loading import pointer

Path = tuple[str | int, ...]
MOST_TEXT = 2000
"""Characters of the longest text that a map may hold."""


@dataclass(slots=True)
class Fields:
    """Reads values by path. Only what `carry` was told of counts as carried over."""

    value: Any
    _carried: set[Path] = field(default_factory=set)

    def get(self, *path: str | int) -> Any:
        """The value at a path; None if there is none."""
        found = self.value
        for part in path:
            if isinstance(found, dict) and isinstance(part, str):
                found = found.get(part)
            elif isinstance(found, list) and isinstance(part, int) and part < len(found):
                found = found[part]
            else:
                return None
        return found

    def has(self, *path: str | int) -> bool:
        """Whether there is a value at a path, null or not."""
        parent = self.get(*path[:-1])
        return isinstance(parent, dict) and path[-1] in parent

    def carry(self, *path: str | int) -> None:
        """Notes that the value at a path, with all in it, stands in the map that is made."""
        self._carried.add(path)

    def text(self, *path: str | int) -> str | None:
        """The text at a path, carried over; None if there is no text that a map can hold."""
        found = self.get(*path)
        if not isinstance(found, str) or not 0 < len(found) <= MOST_TEXT:
            return None
        self.carry(*path)
        return found

    def items(self, *path: str | int) -> list[Any]:
        """The list at a path, empty if there is none. An empty list is carried over: nothing in it is lost."""
        found = self.get(*path)
        if not isinstance(found, list):
            return []
        if not found:
            self.carry(*path)
        return found

    def left(self) -> tuple[str, ...]:
        """JSON pointers of what was not carried over, in file order; a subtree of which nothing was, once."""
        return tuple(pointer(path) for path in self._left(self.value, ()))

    def _left(self, value: Any, path: Path) -> Iterator[Path]:
        if path in self._carried:
            return
        if path and not any(len(other) > len(path) and other[: len(path)] == path for other in self._carried):
            yield path
            return
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in children:
            yield from self._left(child, (*path, key))
