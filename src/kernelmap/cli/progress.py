"""Progress of long work, on standard error and only for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, int, int], None]

BAR_WIDTH, COUNT_WIDTH, MIN_ROOM = 20, 12, 20
"""Columns of the bar, of the count with the spaces between, and the least that a description gets."""


def _cut(text: str, room: int) -> str:
    """``text`` in ``room`` columns: else the terminal would take the room from the bar and the count."""
    return text if len(text) <= room else text[: room - 1] + "…"


def _quiet(_what: str, _done: int, _total: int) -> None:
    return None


@contextmanager
def bar(title: str) -> Iterator[Report]:
    """A progress bar; yields a function that takes what is being done, how many are done, and of how many.

    While a kernel is compiled, which takes seconds the first time, the bar names it.
    """
    if not sys.stderr.isatty():
        yield _quiet
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from kernelmap.compiling import watched

    columns = (
        TextColumn(title),
        BarColumn(bar_width=BAR_WIDTH),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        room = max(MIN_ROOM, progress.console.width - len(title) - BAR_WIDTH - COUNT_WIDTH)
        current = ""

        def report(what: str, done: int, total: int) -> None:
            nonlocal current
            current = what
            progress.update(task, description=_cut(what, room), completed=done, total=total)

        def compiling(function: str, begins: bool) -> None:
            text = f"compiling {function}, {current}" if begins else current
            progress.update(task, description=_cut(text, room))

        with watched(compiling):
            yield report
