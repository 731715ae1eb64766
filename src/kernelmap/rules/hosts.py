"""KM70x to KM74x: hosts."""

from __future__ import annotations

from kernelmap.rules.rule import Rule

RULES = (
    Rule(
        "KM701",
        "no such host profile",
        "The name is neither a profile that comes with kernelmap nor a JSON file.",
        "Use a name that kernelmap host lists, or the path of a profile of your own.",
    ),
)
