"""What conformance is: every variant against its contract's oracle, and a comparison that is known to be able to fail.

The corpus and the trials are those of ``kernelmap certify``: shapes at and around the constraints, adversarial weight
bytes, routing distributions, refused rows, guards around outputs and scratch, old contents of two kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.map_checks import function_paths, missing_functions
from kernelmap.models.contract import Contract
from kernelmap.models.kernel_map import KernelMap, Variant
from kernelmap.registry import Registry, load_registry
from kernelmap.sources import ProviderPackage, provider_packages
from kernelmap.vocabulary import Status

THREADS = (1, 2, 3, 8)
SEED = 7
CASES = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One test of the suite: ``run`` gives the faults, none if all is well."""

    name: str
    run: Callable[[], list[str]]
    skip: str = ""
    """Why it cannot run on this machine; empty if it can."""

    def __str__(self) -> str:
        """The name, by which pytest lists it."""
        return self.name


def checks_of(package: str, *, maps: Iterable[Path] = (), cases: int = CASES) -> list[Check]:
    """The suite of a package: its maps, each variant of its providers, each contract that these fulfil.

    ``maps`` are further folders of maps. Raises KernelmapError with every problem of the registry's files, for a
    package that is not registered, and for one that has no provider.
    """
    from kernelmap.host import probe_host

    known = {item.name: item for item in provider_packages()}
    if package not in known:
        help = f"registered (entry point group kernelmap.providers): {', '.join(known)}"
        message = f"{package!r} is no registered provider package"
        raise KernelmapError(Diagnostic("KM906", message, near=nearest(package, known), help=help))
    registry = load_registry(tuple(maps))
    mine = [item for item in registry.maps.values() if _owned(item, known[package])]
    live = [item for item in mine if item.selection.status is not Status.DEPRECATED]
    if not live:
        help = "no map names a function of it (deprecated ones do not count): give it maps in its folder kernel_maps"
        raise KernelmapError(Diagnostic("KM906", f"{package!r} has no provider to prove", help=help))
    isa = probe_host().isa
    found = [_sources_check(item, registry) for item in mine]
    found += [_variant_check(item, variant, registry, isa, cases) for item, variant in _variants(live)]
    groups = {item.selection.equivalence_group: item for item in live}
    found += [_comparison_check(item, registry.contracts[group], isa, cases) for group, item in sorted(groups.items())]
    return found


def _owned(item: KernelMap, package: ProviderPackage) -> bool:
    return any(package.owns(function.partition(":")[0]) for _, function in function_paths(item))


def _variants(items: Iterable[KernelMap]) -> Iterator[tuple[KernelMap, Variant]]:
    for item in items:
        for variant in item.impl.variants:
            yield item, variant


def _lacks(item: KernelMap, variant: Variant, isa: Iterable[str]) -> list[str]:
    """ISA features that a variant needs and the machine has not."""
    return sorted({*item.requires.isa, *variant.requires} - set(isa))


def _sources_check(item: KernelMap, registry: Registry) -> Check:
    def run() -> list[str]:
        return [str(problem) for problem in missing_functions(item, registry.sources[item.id])]

    return Check(f"{item.id}-functions-exist", run)


def _variant_check(item: KernelMap, variant: Variant, registry: Registry, isa: tuple[str, ...], cases: int) -> Check:
    contract = registry.contracts[item.selection.equivalence_group]
    lacking = _lacks(item, variant, isa)
    return Check(
        f"{item.id}-{variant.name}",
        lambda: variant_faults(item, variant, contract, isa, cases),
        f"this machine lacks {', '.join(lacking)}" if lacking else "",
    )


def variant_faults(
    item: KernelMap, variant: Variant, contract: Contract, isa: tuple[str, ...], cases: int = CASES
) -> list[str]:
    """Faults of a variant against its oracle, those of the first faulty call; none if it conforms.

    Raises KernelmapError if provider or oracle cannot be loaded.
    """
    from kernelmap.certify.corpus import cases_of
    from kernelmap.certify.trial import Subject

    ran = 0
    for case in cases_of(contract, item, variant, seed=SEED, isa=isa, most=cases):
        expected = case.expected()
        subject = Subject(item, variant, case)
        for threads in THREADS:
            faults = subject.trial(expected, threads).faults
            if faults:
                return [f"{item.id} ({variant.name}) against {contract.oracle}: {fault}" for fault in faults]
            ran += 1
    return [] if ran else [f"{item.id} ({variant.name}): no small shape fits the provider's own constraints"]


def _comparison_check(item: KernelMap, contract: Contract, isa: tuple[str, ...], cases: int) -> Check:
    return Check(
        f"{contract.equivalence_group}-comparison-can-fail", lambda: comparison_faults(item, contract, isa, cases)
    )


def comparison_faults(item: KernelMap, contract: Contract, isa: tuple[str, ...], cases: int = CASES) -> list[str]:
    """Changed bits that the comparison overlooks: one bit in each output (with a tolerance: one exponent bit).

    An oracle that accepts no case of the corpus is a fault too: nothing was compared then.
    """
    import numpy as np

    from kernelmap.certify.corpus import cases_of
    from kernelmap.certify.trial import compare

    for case in cases_of(contract, item, item.impl.base, seed=SEED, isa=isa, most=cases):
        status, expected = case.expected()
        if status == 0:
            break
    else:
        return [f"{contract.oracle} refuses every case of the corpus, or no shape fits {item.id}"]
    faults = []
    for port in contract.outputs:
        damaged = {name: np.array(array, order="C") for name, array in expected.items()}
        damaged[port.name].reshape(-1).view(np.uint8)[-1] ^= 0x40
        _, texts = compare(contract, expected, damaged)
        if not (texts and port.name in texts[0]):
            faults.append(f"a changed bit in {port.name} goes unnoticed")
    if compare(contract, expected, expected) != (0.0, []):
        faults.append("the oracle's outputs differ from themselves")
    return faults
