"""Templates: ``{port}``, ``{port.act}`` and ``{option}`` holes of groups, dtypes and arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from kernelmap.vocabulary import FORMATS

_HOLE = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"^[a-z][a-z0-9_]*(\.act)?$")


class TemplateError(ValueError):
    """A hole that nothing fills, or a malformed template. ``name`` is the offending name."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


@lru_cache(maxsize=65536)
def _parts(template: str) -> tuple[tuple[str, str], ...]:
    """(literal text, following hole) pairs; the last hole is empty."""
    parts: list[tuple[str, str]] = []
    end = 0
    for match in _HOLE.finditer(template):
        if not _NAME.match(match[1]):
            raise TemplateError(f"a hole is {{port}}, {{port.act}} or {{option}}, not {{{match[1]}}}", match[1])
        parts.append((template[end : match.start()], match[1]))
        end = match.end()
    parts.append((template[end:], ""))
    if any("{" in text or "}" in text for text, _ in parts):
        raise TemplateError("unbalanced braces", template)
    return tuple(parts)


def holes(template: str) -> tuple[str, ...]:
    """Names of the holes, ``.act`` stripped, in order. Raises TemplateError if malformed."""
    return tuple(name.removesuffix(".act") for _, name in _parts(template) if name)


def fill(template: str, formats: Mapping[str, str], options: Mapping[str, str] | None = None) -> str:
    """The template with weight ports' formats, their activation partners, and options filled in.

    Raises TemplateError for a name that is neither a weight port with a known format nor an option, and for the
    activation partner of a format that has none.
    """
    if "{" not in template:
        return template
    filled: list[str] = []
    for text, hole in _parts(template):
        filled.append(text)
        if not hole:
            continue
        name = hole.removesuffix(".act")
        if name in formats:
            filled.append(_partner(formats[name], name) if hole != name else formats[name])
        elif options is not None and name in options and hole == name:
            filled.append(options[name])
        else:
            raise TemplateError(f"nothing fills {{{hole}}}", name)
    return "".join(filled)


def _partner(storage: str, name: str) -> str:
    known = FORMATS.get(storage)
    if known is None or known.act is None:
        raise TemplateError(f"format {storage} of {name} has no activation partner", name)
    return known.act
