"""Renderings of diagnostics: text in the manner of rustc, GitHub annotations, JSON."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kernelmap.errors import Diagnostic, Place, Severity

_COLOURS = {Severity.ERROR: "\x1b[1;31m", Severity.WARNING: "\x1b[1;33m", Severity.NOTE: "\x1b[1;36m"}
_BOLD, _BLUE, _OFF = "\x1b[1m", "\x1b[1;34m", "\x1b[0m"
_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render_text(diagnostics: Sequence[Diagnostic], *, color: bool = False, width: int = 80) -> str:
    """Every diagnostic with its source line and carets, then a count. Stable, and plain unless ``color``."""
    parts = ["\n".join(_block(item, color, width)) for item in diagnostics]
    return "\n\n".join([*parts, summary(diagnostics)]) + "\n"


def summary(diagnostics: Iterable[Diagnostic]) -> str:
    """``2 errors, 1 warning``."""
    counts = dict.fromkeys(Severity, 0)
    for item in diagnostics:
        counts[item.severity] += 1
    parts = [f"{n} {severity.value}{'' if n == 1 else 's'}" for severity, n in counts.items() if n]
    return ", ".join(parts) or "no problems"


def _block(item: Diagnostic, color: bool, width: int) -> Iterator[str]:
    def paint(code: str, text: str) -> str:
        return f"{code}{text}{_OFF}" if color else text

    head = f"{item.severity.value}[{item.code}]"
    first, *rest = _wrap(f"{head}: {_printable(item.message)}", width, "  ")
    yield first.replace(head, paint(_COLOURS[item.severity], head), 1)
    yield from rest
    gutter = ""
    if item.place is not None:
        gutter = " " * len(str(item.place.line or 1))
        yield f"{gutter}{paint(_BLUE, '-->')} {_printable(str(item.place), keep='')}"
        if item.place.line and item.place.source_line:
            yield from _source(item.place, gutter, width, lambda text: paint(_BLUE, text))
    if item.expected or item.found:
        both = (("expected", item.expected), ("found", item.found))
        facts = ", ".join(f"{name} {_printable(text)}" for name, text in both if text)
        yield from _note(gutter, "note", facts, width)
    if item.near:
        yield from _note(gutter, "near", ", ".join(item.near), width)
    for line in item.help.splitlines():
        yield from _note(gutter, "help", line, width)


def _source(place: Place, gutter: str, width: int, paint: Callable[[str], str]) -> Iterator[str]:
    """The line, cut around the caret if it is long, with carets under what is meant."""
    room = max(20, width - len(gutter) - 3)
    line = "".join(_cell(char) for char in place.source_line)
    if _cells(line) > room and not line.isascii():
        room //= 2  # so that it fits also where every character is two cells wide
    column, start = min(place.column - 1, len(line)), 0
    if len(line) > room:
        start = max(0, min(column - room // 3, len(line) - room))
    shown = line[start : start + room]
    before, meant = shown[: column - start], shown[column - start : column - start + place.width]
    yield paint(f"{gutter} |")
    yield f"{paint(f'{place.line} |')} {shown}".rstrip()
    yield f"{paint(f'{gutter} |')} {' ' * _cells(before)}{'^' * max(1, _cells(meant))}"


def _cell(char: str) -> str:
    """A character that stays in its place: tabs are spaces, and what cannot be printed is a question mark."""
    return " " if char == "\t" else char if char.isprintable() else "?"


def _cells(text: str) -> int:
    """Columns that a terminal gives a text: two for wide characters, none for those that combine (UAX 11)."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _note(gutter: str, label: str, text: str, width: int) -> Iterator[str]:
    lead = f"{gutter} = {label}: "
    yield from textwrap.wrap(
        _printable(text), width, initial_indent=lead, subsequent_indent=" " * len(lead),
        break_long_words=False, break_on_hyphens=False,
    ) or [lead.rstrip()]  # fmt: skip


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [""]  # fmt: skip


def _printable(text: str, keep: str = "\n") -> str:
    """Text from a hostile file, or its name, cannot move the cursor, and can be written in UTF-8."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode("ascii") for char in text
    )


def render_github(diagnostics: Iterable[Diagnostic]) -> str:
    """GitHub workflow commands, one a line: ``::error file=…,line=…,col=…,title=…::message``; ``""`` if all is well."""
    return "".join(f"{_github(item)}\n" for item in diagnostics)


def _github(item: Diagnostic) -> str:
    fields = []
    if item.place is not None:
        fields.append(f"file={_property(item.place.file)}")
        if item.place.line:
            fields += [f"line={item.place.line}", f"col={item.place.column}"]
    fields.append(f"title={_property(item.code)}")
    details = [item.message]
    details += [f"{name}: {text}" for name, text in (("expected", item.expected), ("found", item.found)) if text]
    details += [f"near: {', '.join(item.near)}"] if item.near else []
    details += [f"help: {item.help}"] if item.help else []
    return f"::{_GITHUB[item.severity]} {','.join(fields)}::{_data(chr(10).join(details))}"


def _data(text: str) -> str:
    return _printable(text.replace("\r\n", "\n")).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def to_json(item: Diagnostic) -> dict[str, Any]:
    """A JSON value with stable keys, always the same ones; its strings can be written in UTF-8."""
    place = item.place
    return {
        "code": item.code,
        "severity": item.severity.value,
        "message": _encodable(item.message),
        "file": _encodable(place.file) if place else None,
        "line": place.line if place and place.line else None,
        "column": place.column if place and place.line else None,
        "pointer": _encodable(place.pointer) if place else None,
        "expected": _encodable(item.expected) or None,
        "found": _encodable(item.found) or None,
        "near": [_encodable(name) for name in item.near],
        "help": _encodable(item.help) or None,
    }


def _encodable(text: str) -> str:
    """Names of files may hold lone surrogates: bytes that are no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
