"""One entry of the rule catalogue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """What a diagnostic code means and how to mend what it reports."""

    code: str
    title: str
    meaning: str
    remedy: str
