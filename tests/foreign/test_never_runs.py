"""A foreign provider is shown beside ours and rejected; there is nothing in it that could be run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cke_maps import FIXTURES, newer, write
from pydantic import ValidationError

from kernelmap.bind import bind
from kernelmap.circuit.loading import circuit_for
from kernelmap.cli.main import run
from kernelmap.errors import BindError
from kernelmap.foreign.cke import import_cke
from kernelmap.foreign.writing import write_import
from kernelmap.host import probe_host
from kernelmap.inventory import read_inventory
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.plan import Plan
from kernelmap.registry import Registry, load_registry
from kernelmap.resolver import resolve
from kernelmap.schema_files import schema_text

MODEL = read_inventory(Path(__file__).parents[1] / "data" / "models" / "qwen35moe.gguf")
CIRCUIT = circuit_for(MODEL.architecture)
OURS = "q4_k_q8_k_gate_up_ggml_swiglu_q5_k_q8_k_down_weighted_fp32"
STRONG, WEAK = "cke_strong", "cke_weak"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two foreign maps in a group of ours: one that would outrank everything, and a candidate."""
    place = tmp_path_factory.mktemp("foreign")
    strong = newer("strong", priority=999_999, group="theirs", constraints={"alignment": {"Z": 7}})
    weak = newer("weak", priority=1, group="theirs", status="candidate")
    write(place / "in", strong=strong, weak=weak)
    write_import(import_cke(place / "in", {"theirs": OURS}), place / "out")
    return place / "out"


@pytest.fixture(scope="module")
def registry(folder: Path) -> Registry:
    return load_registry((folder,))


def plan(registry: Registry) -> Plan:
    return resolve(CIRCUIT.circuit, CIRCUIT.source, MODEL, registry, probe_host())


def test_it_is_shown_and_rejected_and_changes_no_choice(registry: Registry) -> None:
    with_foreign, without = plan(registry), plan(load_registry())
    assert [item.provider for item in with_foreign.decisions] == [item.provider for item in without.decisions]
    rows = [row for item in with_foreign.decisions if item.group == OURS for row in item.candidates]
    reasons = {row.id: [reason.code for reason in row.reasons] for row in rows}
    assert reasons[STRONG] == ["KM414"] and reasons[WEAK] == ["KM414", "KM401"]
    assert not any(row.selected or row.eligible for row in rows if row.id in (STRONG, WEAK))


def test_a_route_or_pin_makes_it_no_more_eligible(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["resolve", "qwen35_moe", "--maps", str(folder), "--route", f"routed_experts={WEAK}"]) == 0
    assert "KM460" in (said := capsys.readouterr()).out + said.err
    assert run(["resolve", "qwen35_moe", "--maps", str(folder), "--pin", f"routed_experts={STRONG}"]) == 1
    assert "KM455" in capsys.readouterr().err


def test_ordinary_commands_take_it(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--maps", str(folder)]
    assert run(["explain", "qwen35_moe", "routed_experts", "--why-not", STRONG, *flags]) == 0
    assert "KM414 foreign: not executable" in capsys.readouterr().out
    assert run(["show", STRONG, *flags]) == 0
    assert '"engine": "C-Kernel-Engine"' in capsys.readouterr().out
    assert run(["list", "--group", OURS, *flags]) == 0
    assert STRONG in capsys.readouterr().out
    lock = tmp_path / "x.lock"
    assert run(["lock", "qwen35_moe", "--host", "avx2_2core", "--output", str(lock), *flags]) == 0
    assert run(["lock", "--check", "--lock", str(lock), *flags]) == 0
    assert run(["lock", "--check", "--lock", str(lock)]) == 1
    assert f"provider removed: {STRONG}" in capsys.readouterr().err
    assert run(["audit", "qwen35_moe", "--hosts", "avx2_2core", *flags]) == 0
    assert f"{WEAK} is not selected" in " ".join(capsys.readouterr().out.split())
    assert run(["check", *flags]) == 0
    assert STRONG not in capsys.readouterr().err, "no finding about a map that nobody here can mend"


def test_bind_refuses_a_forged_plan_with_a_place(registry: Registry, folder: Path) -> None:
    honest = plan(registry)
    forged_item = registry.maps[STRONG]
    decisions = tuple(
        item.model_copy(update={"provider": STRONG, "map_digest": forged_item.digest}) if item.group == OURS else item
        for item in honest.decisions
    )
    with pytest.raises(BindError) as caught:
        bind(honest.model_copy(update={"decisions": decisions}), CIRCUIT, registry, MODEL)
    (problem,) = caught.value.diagnostics
    assert problem.code == "KM513" and problem.place is not None
    assert problem.place.file == str(folder / f"{STRONG}.json") and problem.place.pointer == "/impl/backend"
    assert problem.place.line > 0


def test_it_cannot_be_certified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (STRONG, WEAK):
        for more in ((), ("--check",)):
            assert run(["certify", name, "--maps", str(folder), *more]) == 1
            assert "KM513" in capsys.readouterr().err


HOOK = {
    "function": "os:system", "weights": ["w"], "prepared_format": "p", "prepared_bytes": "1", "max_total_bytes": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"impl": {"backend": "foreign", "function": "os:system"}}, "impl_foreign"),
        ({"impl": {"backend": "foreign", "variants": [{"name": "serial"}]}}, "impl_foreign"),
        ({"impl": {"backend": "numpy", "function": "o:s", "variants": [{"name": "serial"}]}}, "foreign_backend"),
        ({"impl": {"backend": "numpy", "variants": [{"name": "serial"}]}}, "impl_function"),
        ({"impl": {"backend": "numpy", "function": "os:system"}}, "impl_variants"),
        ({"foreign": None}, "foreign_backend"),
        ({"weight_preparation": [HOOK]}, "foreign_hook"),
    ],
)
def test_no_model_of_a_foreign_map_holds_code(registry: Registry, change: dict[str, Any], kind: str) -> None:
    value = json.loads(registry.maps[STRONG].model_dump_json(by_alias=True))
    assert KernelMap.model_validate_json(json.dumps(value)) == registry.maps[STRONG]
    with pytest.raises(ValidationError) as caught:
        KernelMap.model_validate_json(json.dumps({**value, **change}))
    assert [item["type"] for item in caught.value.errors()] == [kind]
    if kind.startswith("impl"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**value, **change}, json.loads(schema_text("kernel_map")))


def test_the_digest_covers_what_is_said_of_the_other_engine(registry: Registry) -> None:
    item = registry.maps[STRONG]
    assert item.foreign is not None
    other = item.model_copy(update={"foreign": item.foreign.model_copy(update={"numerical_contract": "other"})})
    assert other.digest != item.digest


@pytest.mark.parametrize("arguments", [["import-cke", str(FIXTURES)], ["foreign", "OUT"]], ids=lambda a: a[0])
def test_static_commands_import_nothing_heavy(folder: Path, arguments: list[str]) -> None:
    given = [str(folder) if word == "OUT" else word for word in arguments]
    code = (
        "import sys\nfrom kernelmap.cli.main import run\n"
        f"run({given!r})\n"
        "heavy = {'numba', 'torch', 'llvmlite', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
