"""The progress bar: what it shows, and that nothing of it goes where no terminal is."""

from __future__ import annotations

import io
import sys
import time

import numba
import pytest

from kernelmap.cli.progress import bar
from kernelmap.compiling import tell, watched
from kernelmap_providers.jit.compile import compiled, entry

PATIENCE = 20.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(shown: Terminal, text: str) -> None:
    """The bar is drawn some ten times a second."""
    end = time.monotonic() + PATIENCE
    while text not in shown.getvalue() and time.monotonic() < end:
        time.sleep(0.02)
    assert text in shown.getvalue()


def test_the_bar_names_the_kernel_that_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)  # not in a fixture: the capture of each phase sets it anew
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with bar("bind") as report:
        report("building gemv_q4_k", 0, 2)
        tell("gemm_task", begins=True)
        wait_for(terminal, "compiling gemm_task, building gemv_q4_k")
        seen = len(terminal.getvalue())
        tell("gemm_task", begins=False)
        report("building gemv_q5_k", 1, 2)
        wait_for(terminal, "1/2 building gemv_q5_k")
    assert "compiling" not in terminal.getvalue()[seen:].partition("1/2 building gemv_q5_k")[2]


def test_a_long_description_leaves_bar_and_count_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with bar("compile") as report:
        report("building " + "x" * 100, 11, 12)
        wait_for(terminal, "11/12 building xxx")
    line = next(line for line in terminal.getvalue().split("\r\x1b[2K") if "11/12" in line)
    assert len(line) <= 80 and line.endswith("x…") and line.count("━") > 15


def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("bind") as report:
        report("building", 0, 1)
        tell("gemm_task", begins=True)
    assert capsys.readouterr() == ("", "")


def test_kernels_tell_of_their_compilation_until_nobody_listens() -> None:
    def plus_one(value: int) -> int:
        return value + 1

    news: list[tuple[str, bool]] = []
    made = entry(plus_one)
    with watched(lambda function, begins: news.append((function, begins))):
        compiled(made, numba.types.int64)
    told = [(plus_one.__qualname__, True), (plus_one.__qualname__, False)]
    assert news in ([], told)  # nothing where an earlier run left it in the cache
    compiled(made, numba.types.float64)
    assert news in ([], told)
