"""A third-party package with maps, a contract, a circuit and kernels of its own, installed for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import environment
import numpy as np
import pytest
from environment import ROOT, Environment

SAMPLE = ROOT / "tests" / "sample_plugin"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    base = tmp_path_factory.mktemp("sample")
    made = environment.make(base, base / "work")
    shutil.copytree(SAMPLE, base / "source", ignore=shutil.ignore_patterns("__pycache__"))
    made.good("pip", "install", str(base / "source"))
    return made


@pytest.fixture
def installed(sample: Environment) -> Iterator[Path]:
    """The installed package's folder, as it was afterwards."""
    folder = sample.site / "sample_kernels"
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".py", ".json")}
    yield folder
    for path in folder.rglob("*"):
        if path.suffix in (".py", ".json") and path not in kept:
            path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)


def write_model(path: Path) -> dict[int, np.ndarray]:
    import gguf

    writer = gguf.GGUFWriter(path, "samplenet")
    writer.add_uint32("samplenet.block_count", 2)
    writer.add_uint32("samplenet.embedding_length", 8)
    rng = np.random.default_rng(5)
    weights = {layer: rng.standard_normal(8).astype(np.float32) for layer in range(2)}
    for layer, weight in weights.items():
        writer.add_tensor(f"blk.{layer}.scale.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_its_data_files_are_installed(sample: Environment) -> None:
    wanted = {path.relative_to(SAMPLE) for path in (SAMPLE / "sample_kernels").rglob("*.json")}
    assert wanted == {path.relative_to(sample.site) for path in (sample.site / "sample_kernels").rglob("*.json")}


def test_list_show_and_check_know_it(sample: Environment, installed: Path) -> None:
    listed = json.loads(sample.good("kernelmap", "list", "--op", "row_scale", "--format", "json"))
    assert [row["id"] for row in listed["groups"]["row_scale_fp32"]] == ["row_scale_rows", "row_scale_whole"]
    assert str(installed / "kernel_maps") in sample.good("kernelmap", "show", "row_scale_whole")
    checked = sample.good("kernelmap", "check", str(installed / "kernel_maps"), str(installed / "circuits"))
    assert "checked 2 maps, 1 contract, 1 circuit: 0 errors" in checked


def test_a_wrong_map_of_it_has_a_place(sample: Environment, installed: Path) -> None:
    path = installed / "kernel_maps" / "row_scale_rows.json"
    path.write_text(
        path.read_text().replace("sample_kernels.scale:row_scale_rows", "sample_kernels.scale:row_scale_row")
    )
    done = sample.run("kernelmap", "check")
    assert done.returncode == 1
    assert "KM217" in done.stderr and f"{path}:" in done.stderr.replace("\n", "")


def test_resolve_and_explain_find_its_circuit_by_name(sample: Environment) -> None:
    plan = json.loads(sample.good("kernelmap", "resolve", "sample_net", "--format", "json"))
    assert {item["provider"] for item in plan["decisions"]} == {"row_scale_whole"}
    routed = sample.good("kernelmap", "resolve", "sample_net", "--route", "scaled=row_scale_rows")
    assert routed.count("> row_scale_rows") == 2
    why = sample.good("kernelmap", "explain", "sample_net", "scaled", "--why-not", "row_scale_rows")
    assert "no route allows it" in why


@pytest.mark.parametrize("route", [(), ("--route", "scaled=row_scale_rows")], ids=["production", "routed"])
def test_run_computes_its_model(sample: Environment, tmp_path: Path, route: tuple[str, ...]) -> None:
    weights = write_model(tmp_path / "model.gguf")
    rows = np.random.default_rng(6).standard_normal((5, 8)).astype(np.float32)
    recorded = tmp_path / "in.npz"
    np.savez(recorded, **{f"x/{layer}": rows for layer in weights})
    saved = tmp_path / "out.npz"
    words = ("kernelmap", "run", str(tmp_path / "model.gguf"), "--save", str(saved), *route)
    said = sample.good(*words)
    assert "executed equals selected" in said
    assert ("row_scale_rows" if route else "row_scale_whole") in said
    assert saved.is_file()


def test_lock_holds_its_choices_and_sees_its_sources_change(sample: Environment, installed: Path) -> None:
    sample.good("kernelmap", "lock", "sample_net", "--output", "kernelmap.lock.json")
    sample.good("kernelmap", "lock", "--check", "--lock", "kernelmap.lock.json")
    source = installed / "scale.py"
    source.write_text(source.read_text() + "\n# another byte\n")
    drifted = sample.run("kernelmap", "lock", "--check", "--lock", "kernelmap.lock.json")
    assert drifted.returncode == 1 and "row_scale_whole" in drifted.stderr


def test_certify_writes_its_evidence_where_it_is_read(sample: Environment, installed: Path) -> None:
    folder = installed / "kernel_maps" / "evidence"
    folder.mkdir(exist_ok=True)
    said = sample.good("kernelmap", "certify", "row_scale_whole", "--into", str(folder))
    assert "pass" in said and (folder / "row_scale_whole.json").is_file()
    assert "valid" in sample.good("kernelmap", "certify", "--check", "row_scale_whole")


def test_conformance_in_one_line_both_ways(sample: Environment) -> None:
    whole = sample.run("pytest", "-q", "-rA", "-p", "no:cacheprovider", "--kernelmap-conformance=sample_kernels")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "6 passed" in whole.stdout
    path = sample.work / "test_mine.py"
    path.write_text('from kernelmap.testing import conformance\ntest_mine = conformance("sample_kernels")\n')
    mine = sample.run("pytest", "-q", "-p", "no:cacheprovider", str(path), "-k", "few_rows or comparison")
    assert mine.returncode == 0 and "2 passed, 4 deselected" in mine.stdout
    chosen = sample.run("pytest", "-q", "--kernelmap-conformance=sample_kernels", "-k", "few_rows", str(path))
    assert "2 passed, 10 deselected" in chosen.stdout
    path.unlink()


PLANTED = {
    "rounding": ("out[...] = row * weight * scale", "out[...] = row * (weight * scale)", "y differs in"),
    "row left out": ("zip(x, y, strict=True)", "list(zip(x, y, strict=True))[:16]", "y differs in"),
    "input changed": (
        "out[...] = row * weight * scale",
        "row *= weight; out[...] = row * scale",
        "wrote to its input x",
    ),
    "bad status": (
        "        return 0\n\n    return run\n",
        "        return len(x) // 17\n\n    return run\n",
        "status 1",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_provider_fails_the_suite(sample: Environment, installed: Path, name: str) -> None:
    before, after, said = PLANTED[name]
    path = installed / "scale.py"
    head, tail = path.read_text().split("def row_scale_rows")
    assert before in tail
    path.write_text(head + "def row_scale_rows" + tail.replace(before, after))
    done = sample.run("pytest", "-q", "-p", "no:cacheprovider", "--kernelmap-conformance=sample_kernels")
    assert done.returncode == 1
    assert "row_scale_rows (serial) against sample_kernels.oracle:row_scale" in done.stdout
    assert said in done.stdout, done.stdout
    assert "row_scale_whole-serial" not in done.stdout


def test_a_package_cannot_take_the_name_of_a_circuit(sample: Environment, installed: Path) -> None:
    shutil.copy(installed / "circuits" / "sample_net.json", installed / "circuits" / "qwen35_moe.json")
    done = sample.run("kernelmap", "resolve", "qwen35_moe")
    assert done.returncode == 1 and "KM201" in done.stderr and "declared twice" in done.stderr
