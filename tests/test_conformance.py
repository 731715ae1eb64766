"""Every provider and variant of this package against its contract's oracle. A new map needs no new test code."""

from __future__ import annotations

from kernelmap.registry import load_registry
from kernelmap.testing import conformance

test_conformance = conformance("kernelmap_providers")


def test_every_live_map_and_group_is_in_the_suite() -> None:
    registry = load_registry()
    names = {param.id for mark in test_conformance.pytestmark for param in mark.args[1]}
    for item in registry.maps.values():
        assert f"{item.id}-functions-exist" in names
        if item.selection.status.value != "deprecated":
            assert {f"{item.id}-{variant.name}" for variant in item.impl.variants} <= names
    assert {f"{group}-comparison-can-fail" for group in registry.ladders} <= names
