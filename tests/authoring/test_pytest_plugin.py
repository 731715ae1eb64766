"""The pytest plugin: nothing in a run that does not ask for it, the whole suite in one that does."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmap.errors import KernelmapError
from kernelmap.testing import conformance

BASIC = "def test_one():\n    assert True\n"
REPORT = """
import sys
def pytest_sessionfinish(session):
    loaded = sorted(name for name in sys.modules if name.split(".")[0] in
                    {"kernelmap", "kernelmap_providers", "numpy", "numba", "torch", "llvmlite", "pydantic", "typer"})
    print("loaded:", *loaded)
"""


def session(folder: Path, *words: str, plugin: bool = True) -> subprocess.CompletedProcess[str]:
    """A pytest run of its own, with no plugin but ours (and the folder's conftest)."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:timeout"]
    command += ["-p", "no:hypothesispytest"]
    command += [] if plugin else ["-p", "no:kernelmap"]
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_the_entry_point_names_the_plugin() -> None:
    points = {point.name: point.value for point in importlib.metadata.entry_points(group="pytest11")}
    assert points["kernelmap"] == "kernelmap.testing.plugin"


def test_a_run_that_does_not_ask_loads_the_plugin_alone_and_is_as_without(tmp_path: Path) -> None:
    (tmp_path / "test_basic.py").write_text(BASIC)
    (tmp_path / "conftest.py").write_text(REPORT)
    given, without = session(tmp_path), session(tmp_path, plugin=False)
    assert given.returncode == without.returncode == 0
    loaded = next(line for line in given.stdout.splitlines() if "loaded:" in line).partition("loaded: ")[2].split()
    assert loaded == ["kernelmap", "kernelmap.testing", "kernelmap.testing.plugin"]
    assert next(line for line in without.stdout.splitlines() if "loaded:" in line).endswith("loaded:")

    def told(text: str) -> list[str]:
        return [line.partition(" in ")[0] for line in text.splitlines() if "loaded:" not in line]

    assert told(given.stdout) == told(without.stdout)


def test_an_empty_run_still_says_that_it_is_empty(tmp_path: Path) -> None:
    assert session(tmp_path).returncode == 5


def test_the_suite_comes_after_the_collected_tests_and_k_chooses_in_it(tmp_path: Path) -> None:
    (tmp_path / "test_basic.py").write_text(BASIC)
    option = "--kernelmap-conformance=kernelmap_providers"
    listed = session(tmp_path, "--collect-only", option, option)
    names = [line for line in listed.stdout.splitlines() if "::" in line]
    assert names[0] == "test_basic.py::test_one"
    assert "kernelmap:kernelmap_providers::gemm_nt_fp32-lanes8" in names
    assert len(names) == len(set(names)), "a package that is given twice is proved once"
    chosen = session(tmp_path, option, "-k", "gemm_nt_fp32-functions", "--junitxml=out.xml")
    assert chosen.returncode == 0 and "1 passed" in chosen.stdout
    assert (
        'classname="kernelmap:kernelmap_providers" name="gemm_nt_fp32-functions-exist"'
        in (tmp_path / "out.xml").read_text()
    )


def test_a_package_that_is_not_registered_is_wrong_use(tmp_path: Path) -> None:
    done = session(tmp_path, "--kernelmap-conformance=kernelmap_provider")
    assert done.returncode == 4
    assert "KM906" in done.stderr and "near: kernelmap_providers" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(KernelmapError, match=r"KM906.*'nobody' is no registered provider package"):
        conformance("nobody")


def test_a_package_without_providers_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelmap import sources
    from kernelmap.testing import suite

    empty = sources.ProviderPackage("hollow", tmp_path)
    monkeypatch.setattr(suite, "provider_packages", lambda: (*sources.provider_packages(), empty))
    with pytest.raises(KernelmapError, match=r"KM906.*'hollow' has no provider to prove"):
        conformance("hollow")


def test_variants_that_this_machine_cannot_run_are_skipped_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelmap import host
    from kernelmap.testing import suite

    poor = host.probe_host().model_copy(update={"isa": ()})
    monkeypatch.setattr(host, "probe_host", lambda: poor)
    skips = {check.name: check.skip for check in suite.checks_of("kernelmap_providers")}
    assert skips["gemm_nt_fp32-lanes8"] == ""
    needy = {name: why for name, why in skips.items() if why}
    registry = suite.load_registry()
    wanted = {
        f"{item.id}-{variant.name}"
        for item in registry.maps.values()
        for variant in item.impl.variants
        if item.selection.status.value != "deprecated" and {*item.requires.isa, *variant.requires}
    }
    assert set(needy) == wanted
    assert all(why.startswith("this machine lacks ") for why in needy.values())


def test_a_test_function_fails_with_the_faults_alone() -> None:
    from kernelmap.testing.suite import Check

    test = conformance("kernelmap_providers")
    test(Check("fine", list))
    with pytest.raises(pytest.fail.Exception, match=r"^one\ntwo$"):
        test(Check("bad", lambda: ["one", "two"]))
