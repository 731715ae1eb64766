"""A bench record as people read it: for each case a table with bars, within 80 columns."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from io import StringIO
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelmap.bench.ratios import LEAST_ROUNDS, Ratio, spread
from kernelmap.bench.record import case_text, ratio_in
from kernelmap.cli.output import plain_output
from kernelmap.models.bench import BenchCase, BenchRecord

WIDTH = 80
_BAR = 26


def bench_text(record: BenchRecord) -> str:
    """The whole record: host, a table a case, providers that were not run, and how to read it."""
    host = record.host
    head = f"{host.cpu}, {host.cores} core{'' if host.cores == 1 else 's'}, ISA path {host.path}"
    parts = [head, *(_case(record, case) for case in record.cases), *_not_run(record)]
    rounds = min((len(item.seconds) for case in record.cases for item in case.times), default=0)
    few = f"; {rounds} rounds are too few to promote by ({LEAST_ROUNDS})" if 0 < rounds < LEAST_ROUNDS else ""
    legend = (
        f"median of {rounds} interleaved rounds ± half the quartile range; x: time / incumbent's with its 95 % "
        f"interval; cpu: cores kept busy; > selected now{few}"
    )
    parts.append("\n".join(textwrap.wrap(legend, WIDTH)))
    return "\n\n".join(part for part in parts if part)


def _case(record: BenchRecord, case: BenchCase) -> str:
    copies = f", {case.copies} copies of the weights" if case.copies > 1 else ""
    head = "\n".join(textwrap.wrap(f"{case.op}  {case_text(case)}{copies}  ({case.source})", WIDTH,
                                   subsequent_indent="  "))  # fmt: skip
    group = "\n".join(textwrap.wrap(f"  group {case.group}", WIDTH, subsequent_indent="    "))
    lines = [head, group]
    if case.incumbent is None:
        lines.append("  nothing is selected here now: no ratio")
    elif case.of(case.incumbent) is None and case.times:
        lines.append(f"  {case.incumbent} is selected and was not timed: no ratio")
    if not case.times:
        return "\n".join([*lines, "  nothing was timed"])
    return "\n".join([*lines, _table(record, case)])


def _table(record: BenchRecord, case: BenchCase) -> str:
    """Two lines a provider, by falling priority: who, and how long."""
    table = Table(box=None, pad_edge=False, show_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    longest = max(median(item.seconds) for item in case.times)
    for item in sorted(case.times, key=lambda item: -record.providers[item.provider].priority):
        facts = record.providers[item.provider]
        mine = item.provider == case.incumbent
        between = ratio_in(case, item.provider, case.incumbent) if case.incumbent is not None else None
        table.add_row(f"{'>' if mine else ' '} {item.provider}  {facts.status.value} {facts.priority}, {item.variant}")
        middle = median(item.seconds)
        line = Text(f"    {duration(middle):>8} ±{spread(item.seconds):<4.0%} {_factor(between, mine):<22} "
                    f"cpu {item.cpu_per_wall:<4.1f} ")  # fmt: skip
        table.add_row(line + _bar(middle / longest, between, mine))
    out = StringIO()
    plain = plain_output()
    console = Console(file=out, width=WIDTH, force_terminal=not plain, no_color=plain, highlight=False, markup=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").splitlines())


def _factor(between: Ratio | None, mine: bool) -> str:
    if between is None:
        return ""
    return "x 1.00" if mine else f"x {between}"


def _bar(part: float, between: Ratio | None, mine: bool) -> Text:
    colour = "cyan" if mine or between is None else "green" if between.faster else "red" if between.slower else "yellow"
    full = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    return Text(full * max(1, round(part * _BAR)), style=colour)


def duration(seconds: float) -> str:
    """Three digits and a unit: ``12.3 us``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 999.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def _not_run(record: BenchRecord) -> Iterator[str]:
    """Providers that the resolver refuses, with the places and reasons; equal ones together."""
    found: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
    for case in record.cases:
        for item in case.ineligible:
            found.setdefault((item.provider, item.reasons), {})[case.phase.value] = None
    if not found:
        return
    lines = ["not run:"]
    for (name, reasons), phases in found.items():
        told = f"{name} ({', '.join(phases)}): {'; '.join(reasons)}"
        lines += textwrap.wrap(told, WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False)
    yield "\n".join(lines)
