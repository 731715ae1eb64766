"""The report to look at, and a browser to look with; without one its tests are skipped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(folder) for folder in (TESTS, TESTS / "audit") if str(folder) not in sys.path]

from browser import Browser, find_browser  # noqa: E402
from worlds import shipped_report  # noqa: E402

from kernelmap.models.report import Report  # noqa: E402


@pytest.fixture(scope="session")
def shipped() -> Report:
    """All shipped circuits and the toy one. An exclusion leaves holes; the first decision holds on one host less."""
    made = shipped_report("toy_softcap")
    first = made.decisions[0].model_copy(update={"hosts": made.decisions[0].hosts[1:]})
    return made.model_copy(update={"decisions": (first, *made.decisions[1:])})


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    binary = find_browser()
    if binary is None:
        pytest.skip("no Chromium here: install Debian's chromium to test pages in a browser")
    with Browser(binary, tmp_path_factory.mktemp("profile")) as made:
        yield made
