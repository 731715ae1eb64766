"""The conformance suite for the providers of a package, yours or this one: for pytest, in one line.

In a test file::

    from kernelmap.testing import conformance

    test_conformance = conformance("my_kernels")

or, without a file, ``pytest --kernelmap-conformance=my_kernels``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelmap.testing.suite import Check

__all__ = ["conformance"]


def conformance(package: str, *, cases: int = 5) -> Callable[[Check], None]:
    """A test function for pytest, parametrised over every variant and contract of a provider package.

    ``cases`` is how many cases of the generated corpus each variant runs, each with 1, 2, 3 and 8 threads. A variant
    whose ISA this machine lacks is skipped, with the reason. Raises KernelmapError if the package is not registered, if
    a file of the registry is wrong, or if the package has no provider: an empty suite is no proof.
    """
    import pytest

    from kernelmap.testing.suite import checks_of

    params = [
        pytest.param(check, id=check.name, marks=[pytest.mark.skip(reason=check.skip)] if check.skip else [])
        for check in checks_of(package, cases=cases)
    ]

    def test_conformance(check: Check) -> None:
        if faults := check.run():
            pytest.fail("\n".join(faults), pytrace=False)

    marked: Callable[[Check], None] = pytest.mark.parametrize("check", params)(test_conformance)
    return marked
