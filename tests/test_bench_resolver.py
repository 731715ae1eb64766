"""The resolver benchmark runs, and load and resolve times grow no worse than linearly."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "bench_resolver.py"
SLACK = 2.5
"""Over linear growth. A quadratic step shows as a factor of 4 here; timer noise and fixed costs stay below this."""


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_resolver", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_resolver"] = module
    spec.loader.exec_module(module)
    return module


def test_it_prints_json(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--sizes", "10,20", "--ops", "100", "--repeat", "1", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["maps"], row["groups"], row["ops"]) for row in rows] == [(10, 2, 100), (20, 4, 100)]
    assert all(row[key] > 0 for row in rows for key in ("load", "resolve_layered", "resolve_distinct"))


def test_it_prints_a_table(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--sizes", "10", "--ops", "10", "--repeat", "1"]) == 0
    assert "resolve, layered" in " ".join(capsys.readouterr().out.split())


def test_loading_grows_linearly_in_maps(bench: ModuleType) -> None:
    small, large = bench.measure(200, 10, 3), bench.measure(800, 10, 3)
    assert large.load < 4 * SLACK * small.load


def test_resolving_grows_linearly_in_ops(bench: ModuleType) -> None:
    small, large = bench.measure(50, 200, 3), bench.measure(50, 800, 3)
    assert large.resolve_distinct < 4 * SLACK * small.resolve_distinct
    assert large.resolve_layered < 4 * SLACK * small.resolve_layered


def test_resolving_does_not_depend_on_maps_of_other_groups(bench: ModuleType) -> None:
    """The same two groups' ops in a registry of 10 and of 1,000 maps."""
    small, large = bench.measure(10, 100, 3), bench.measure(1000, 100, 3)
    assert large.resolve_layered < 10 * small.resolve_layered, "100 times the maps"
