"""Diagnostics: the one way in which kernelmap says that something is wrong, and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a diagnostic is: an error stops, a warning does not (unless ``--strict``), a note explains."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a problem is. ``line`` and ``column`` count from 1, ``column`` in characters; 0 means the whole file."""

    file: str
    line: int = 0
    column: int = 0
    pointer: str = ""
    """JSON pointer (RFC 6901) into the file, ``""`` for the document."""
    source_line: str = ""
    """Text of the line, for the caret rendering."""
    width: int = 1
    """Characters to underline from ``column`` on."""

    def __str__(self) -> str:
        """``file:line:column``, or just ``file``."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem: stable code, one-line message, place, what was expected and found, and how to mend it."""

    code: str
    """Key of the rule catalogue (``kernelmap.rules``), e.g. ``KM203``."""
    message: str
    severity: Severity = Severity.ERROR
    place: Place | None = None
    expected: str = ""
    found: str = ""
    help: str = ""
    near: tuple[str, ...] = ()
    """Names close to the one that was not found, best first."""

    def __str__(self) -> str:
        """One line: ``place: severity[code]: message``."""
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.severity.value}[{self.code}]: {self.message}"


class KernelmapError(Exception):
    """Raised with every problem that was found, not just the first. ``diagnostics`` is never empty."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        items = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        if not items:
            raise ValueError("KernelmapError needs at least one diagnostic")
        self.diagnostics: tuple[Diagnostic, ...] = items
        super().__init__("\n".join(str(item) for item in items))


class BindError(KernelmapError):
    """A plan could not be bound: digests, host, signatures, preparation or memory do not fit."""


class KernelInputError(KernelmapError):
    """A kernel refused its input (NaN, Inf, an index out of range); the message names op, layer and row."""


def errors_in(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The diagnostics of severity error, in order."""
    return tuple(item for item in diagnostics if item.severity is Severity.ERROR)


def raise_if_errors(diagnostics: Sequence[Diagnostic]) -> None:
    """Raise `KernelmapError` with all of ``diagnostics`` if any of them is an error."""
    if errors_in(diagnostics):
        raise KernelmapError(diagnostics)


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """Up to ``limit`` of ``candidates`` that are spelled like ``name``, best first."""
    from difflib import get_close_matches

    return tuple(get_close_matches(name, sorted(set(candidates)), n=limit, cutoff=0.5))
