"""Warnings on a sound registry: what can never be chosen, what is chosen without proof."""

from __future__ import annotations

from typing import Any

import pytest

from kernelmap.errors import Severity
from kernelmap.map_checks import lints
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.vocabulary import Device
from support import GROUP, make_map, map_value, registry_of, source_of

Json = dict[str, Any]


def lint(maps: list, *, certified: frozenset[str] = frozenset(), routed: frozenset[str] = frozenset()):
    registry = registry_of(maps, [GROUP])
    found = lints(registry.maps, registry.ladders, registry.contracts, certified, routed, registry.sources)
    assert all(item.severity is Severity.WARNING for item in found)
    return [(item.code, item.message) for item in found]


def test_lint_a_provider_in_the_shadow_of_another() -> None:
    both_certified = frozenset({"high", "low"})
    messages = lint([make_map("high", priority=2), make_map("low", priority=1)], certified=both_certified)
    assert messages == [("KM251", "low can never be selected: high ranks higher and is always eligible")]


@pytest.mark.parametrize(
    "high",
    [
        {"phases": ("prefill",)},
        {"isa": ("avx2",)},
        {"dims": {"H": {"max": 64}}},
        {"budget": 1},
        {"status": "candidate"},
    ],
    ids=str,
)
def test_lint_no_shadow_where_the_higher_one_may_be_refused(high: Json) -> None:
    maps = [make_map("high", priority=2, **high), make_map("low", priority=1)]
    assert lint(maps, certified=frozenset({"high", "low"}), routed=frozenset({"high"})) == []


def test_lint_no_shadow_over_a_provider_for_any_device() -> None:
    value = map_value("low", priority=1)
    low = validate(source_of({**value, "requires": {**value.get("requires", {}), "device": "any"}}), KernelMap)
    assert low.requires.device is Device.ANY
    assert lint([make_map("high", priority=2), low], certified=frozenset({"high", "low"})) == []


def test_lint_a_shadow_may_be_cast_by_several() -> None:
    maps = [
        make_map("a", priority=3, phases=("prefill",)),
        make_map("b", priority=2, phases=("decode",)),
        make_map("low", priority=1),
    ]
    assert [code for code, _ in lint(maps, certified=frozenset({"a", "b", "low"}))] == ["KM251"]


def test_lint_group_without_production_provider() -> None:
    assert lint([make_map("toy", status="diagnostic")]) == [("KM252", f"group {GROUP} has no production provider")]
    assert lint([]) == [("KM252", f"group {GROUP} has no production provider")]


def test_lint_production_without_evidence() -> None:
    assert lint([make_map("toy")]) == [("KM253", "production without evidence: toy")]


def test_lint_candidate_that_no_circuit_routes() -> None:
    maps = [make_map("toy"), make_map("new", priority=900, status="candidate")]
    assert lint(maps, certified=frozenset({"toy"})) == [("KM254", "no circuit routes candidate new")]
    assert lint(maps, certified=frozenset({"toy"}), routed=frozenset({"new"})) == []
