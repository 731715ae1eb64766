"""Every provider and variant of the registry against its contract's oracle. A new map needs no new test code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from conformance import Case, cases_of, compare, run_provider
from kernelmap.models.kernel_map import KernelMap, Variant
from kernelmap.registry import load_registry
from kernelmap.vocabulary import Status

REGISTRY = load_registry()
THREADS = (1, 2, 3, 8)


@dataclass(frozen=True)
class Subject:
    item: KernelMap
    variant: Variant

    def __str__(self) -> str:
        return f"{self.item.id}-{self.variant.name}"


def subjects() -> Iterator[Subject]:
    for item in REGISTRY.maps.values():
        if item.selection.status is not Status.DEPRECATED:
            for variant in item.impl.variants:
                yield Subject(item, variant)


@pytest.mark.parametrize("subject", list(subjects()), ids=str)
def test_provider_equals_its_oracle(subject: Subject) -> None:
    contract = REGISTRY.contracts[subject.item.selection.equivalence_group]
    ran = 0
    for case in cases_of(contract, subject.item, subject.variant, seed=7):
        expected = case.oracle()
        for threads in THREADS:
            actual = run_provider(subject.item, subject.variant, case, threads)
            compare(contract, expected, actual, f"{subject} {case.label} threads={threads}")
            ran += 1
    assert ran >= len(THREADS), "no case fits the provider's own constraints"


@pytest.mark.parametrize("subject", list(subjects()), ids=str)
def test_a_wrong_result_would_be_noticed(subject: Subject) -> None:
    """The comparison itself can fail: one changed bit in each output is reported."""
    contract = REGISTRY.contracts[subject.item.selection.equivalence_group]
    case: Case = next(iter(cases_of(contract, subject.item, subject.variant, seed=7)))
    expected = case.oracle()
    for port in contract.outputs:
        damaged = {name: array.copy() for name, array in expected.items()}
        flat = damaged[port.name].reshape(-1).view(np.uint8)
        flat[-1] ^= 0x40
        with pytest.raises(AssertionError):
            compare(contract, expected, damaged, "damaged")
