"""What all commands share in printing: formats, diagnostics, JSON, exit codes."""

from __future__ import annotations

import json
import os
import re
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
    HTML = "html"


_chosen = Format.TEXT
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, colours or reorders a line, or is no UTF-8: names and texts of files may have it."""


def choose(output: Format) -> None:
    """Sets the format in which problems of this run are reported."""
    global _chosen
    _chosen = output


def harmless(text: str) -> str:
    """A text that a terminal shows as it stands: control characters and lone surrogates as ``\\u001b``, as in JSON."""
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def emit(text: str) -> None:
    """Prints to standard output."""
    text = harmless(text)
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


def plain_output() -> bool:
    """Whether standard output takes no colours."""
    return not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
