"""News of compilation: providers tell here what they compile, whoever shows progress listens.

The framework imports no kernel, and kernels know nothing of a terminal; this is where they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watcher = Callable[[str, bool], None]
"""Takes a kernel's function, and whether its compilation begins (else it has ended)."""
_watchers: list[Watcher] = []


def tell(function: str, begins: bool) -> None:
    """Told by providers: ``function`` is compiled from now on, or was until now. Loading from a cache is no news."""
    for watcher in tuple(_watchers):
        watcher(function, begins)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Call ``watcher`` with all news inside the ``with`` block."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
