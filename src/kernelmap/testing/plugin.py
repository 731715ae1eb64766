"""The pytest plugin: ``pytest --kernelmap-conformance=PACKAGE`` adds the conformance suite of a provider package.

Every pytest run of an environment that has kernelmap loads this module, so it imports nothing but pytest; a run without
the option is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kernelmap.testing.suite import Check

OPTION = "kernelmap_conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--kernelmap-conformance``."""
    parser.getgroup("kernelmap").addoption(
        "--kernelmap-conformance",
        dest=OPTION,
        action="append",
        default=[],
        metavar="PACKAGE",
        help="Prove every provider of a kernelmap provider package against its contract's oracle (repeatable).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Adds the suite to the run if a package is given."""
    packages = config.getoption(OPTION)
    if packages and not config.pluginmanager.has_plugin("kernelmap-conformance"):
        config.pluginmanager.register(_Suites(list(dict.fromkeys(packages))), "kernelmap-conformance")


class _Suites:
    """Adds the checks of some packages after the collected tests, before ``-k`` and its like choose among them."""

    def __init__(self, packages: list[str]) -> None:
        self.packages = packages

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        from kernelmap.errors import KernelmapError
        from kernelmap.render import render_text

        for package in self.packages:
            try:
                items.extend(
                    _Suite.from_parent(session, name=package, nodeid=f"kernelmap:{package}", package=package).collect()
                )
            except KernelmapError as error:
                raise pytest.UsageError(render_text(error.diagnostics, color=False, width=80).rstrip()) from None


class _Suite(pytest.Collector):
    """The suite of one package."""

    def __init__(self, *, package: str, **given: Any) -> None:
        super().__init__(**given)
        self.package = package

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each check."""
        from kernelmap.testing.suite import checks_of

        for check in checks_of(self.package):
            yield _Conformance.from_parent(self, name=check.name, check=check)


class _Conformance(pytest.Item):
    """One check as a test."""

    def __init__(self, *, check: Check, **given: Any) -> None:
        super().__init__(**given)
        self.check = check
        if check.skip:
            self.add_marker(pytest.mark.skip(reason=check.skip))

    def runtest(self) -> None:
        """Fails with every fault of the first faulty call."""
        if faults := self.check.run():
            pytest.fail("\n".join(faults), pytrace=False)

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Where and what, for the heading of a failure."""
        return "kernelmap.testing", None, self.nodeid
