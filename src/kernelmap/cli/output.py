"""What all commands share in printing: formats, diagnostics, JSON, exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from kernelmap.errors import Diagnostic, errors_in
from kernelmap.render import render_github, render_text, to_json

CLEAN, PROBLEM, MISUSE = 0, 1, 2


class Format(StrEnum):
    """Output formats; each command takes some of them."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"
    MD = "md"


_chosen = Format.TEXT


def choose(output: Format) -> None:
    """Sets the format in which problems of this run are reported."""
    global _chosen
    _chosen = output


def emit(text: str) -> None:
    """Prints to standard output."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def emit_json(value: Any) -> None:
    """Prints indented JSON with sorted keys."""
    emit(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False))


def report(diagnostics: Sequence[Diagnostic], *, strict: bool = False) -> int:
    """Prints diagnostics in the chosen format; returns the exit code: 1 for errors (with ``strict``, for any)."""
    if _chosen is Format.JSON:
        emit_json({"diagnostics": [to_json(item) for item in diagnostics]})
    elif _chosen is Format.SARIF:
        from kernelmap.sarif import sarif

        emit_json(sarif(diagnostics))
    elif diagnostics and _chosen is Format.GITHUB:
        emit(render_github(diagnostics))
    elif diagnostics:
        sys.stdout.flush()
        sys.stderr.write(render_text(diagnostics, color=_colour(), width=80).rstrip("\n") + "\n")
    return PROBLEM if errors_in(diagnostics) or (strict and diagnostics) else CLEAN


def _colour() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
