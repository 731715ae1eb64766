"""The rule catalogue: every diagnostic code, what it means and how to mend it."""

from collections.abc import Mapping
from types import MappingProxyType

from kernelmap.rules import (
    auditing,
    benching,
    binding,
    circuits,
    foreign,
    hosts,
    inventory,
    json_files,
    ops,
    registry,
    schema,
    selection,
    tracing,
    usage,
)
from kernelmap.rules.rule import Rule

_MODULES = (
    json_files,
    schema,
    registry,
    circuits,
    selection,
    binding,
    tracing,
    benching,
    ops,
    inventory,
    hosts,
    auditing,
    foreign,
    usage,
)


def _catalogue() -> Mapping[str, Rule]:
    found: dict[str, Rule] = {}
    for module in _MODULES:
        for rule in module.RULES:
            if rule.code in found:
                raise ValueError(f"{rule.code} stands twice in the catalogue")
            found[rule.code] = rule
    return MappingProxyType(dict(sorted(found.items())))


CATALOGUE: Mapping[str, Rule] = _catalogue()
"""Rules by code."""
