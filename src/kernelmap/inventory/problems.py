"""Collects the problems of model files: all that are found, but a bounded number of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelmap.errors import Diagnostic, KernelmapError, Place

MAX_REPORTED = 64
"""A hostile file could otherwise make one diagnostic for each of 100,000 tensors."""


class BrokenFileError(Exception):
    """Reading this file cannot go on: what follows has no known position. The problem was already reported."""


@dataclass(slots=True)
class Problems:
    """Diagnostics of one or several files of a model, in the order in which they were found."""

    found: list[Diagnostic] = field(default_factory=list)
    more: int = 0

    def add(
        self, code: str, file: str, message: str, *, expected: str = "", found: str = "", help: str = ""
    ) -> BrokenFileError:
        """Notes a problem of ``file``. The caller may raise what is returned if reading cannot go on."""
        if len(self.found) < MAX_REPORTED:
            place = Place(file)
            self.found.append(Diagnostic(code, message, place=place, expected=expected, found=found, help=help))
        else:
            self.more += 1
        return BrokenFileError()

    def raise_if_any(self) -> None:
        """Raises KernelmapError with everything that was found."""
        if self.more:
            last = self.found[-1]
            self.found.append(Diagnostic(last.code, f"and {self.more} more problems like these", place=last.place))
            self.more = 0
        if self.found:
            raise KernelmapError(self.found)


def shown(name: str) -> str:
    """A name out of an untrusted file, quoted, escaped and cut: it may hold terminal escapes or a million letters."""
    return ascii(name if len(name) <= 80 else name[:77] + "...")
