"""Every provider and variant of the registry against its contract's oracle. A new map needs no new test code.

The corpus and the trials are those of `kernelmap certify`: shapes at and around the constraints, adversarial weight
bytes, routing distributions, refused rows, guards around outputs and scratch, old contents of two kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from kernelmap.certify.corpus import cases_of
from kernelmap.certify.trial import Subject, compare
from kernelmap.host import probe_host
from kernelmap.models.kernel_map import KernelMap, Variant
from kernelmap.registry import load_registry
from kernelmap.vocabulary import Status

REGISTRY = load_registry()
ISA = probe_host().isa
THREADS = (1, 2, 3, 8)
CASES = 5


@dataclass(frozen=True)
class Target:
    item: KernelMap
    variant: Variant

    def __str__(self) -> str:
        return f"{self.item.id}-{self.variant.name}"


def targets() -> Iterator[Target]:
    for item in REGISTRY.maps.values():
        if item.selection.status is not Status.DEPRECATED and set(item.requires.isa) <= set(ISA):
            for variant in item.impl.variants:
                if set(variant.requires) <= set(ISA):
                    yield Target(item, variant)


@pytest.mark.parametrize("target", list(targets()), ids=str)
def test_provider_equals_its_oracle(target: Target) -> None:
    contract = REGISTRY.contracts[target.item.selection.equivalence_group]
    ran = 0
    for case in cases_of(contract, target.item, target.variant, seed=7, isa=ISA, most=CASES):
        expected = case.expected()
        subject = Subject(target.item, target.variant, case)
        for threads in THREADS:
            faults = subject.trial(expected, threads).faults
            assert not faults, "\n".join(map(str, faults))
            ran += 1
    assert ran >= len(THREADS), "no small shape fits the provider's own constraints"


@pytest.mark.parametrize("group", sorted(REGISTRY.ladders))
def test_the_comparison_can_fail(group: str) -> None:
    """One changed bit in any output is noticed (in a tolerance contract: one changed exponent bit)."""
    contract = REGISTRY.contracts[group]
    item = REGISTRY.ladders[group][0]
    for case in cases_of(contract, item, item.impl.base, seed=7, isa=ISA, most=CASES):
        status, expected = case.expected()
        if status == 0:
            break
    assert status == 0
    for port in contract.outputs:
        damaged = {name: array.copy() for name, array in expected.items()}
        flat = damaged[port.name].reshape(-1).view(np.uint8)
        flat[-1] ^= 0x40
        _, texts = compare(contract, expected, damaged)
        assert texts and port.name in texts[0]
        assert compare(contract, expected, expected) == (0.0, [])
