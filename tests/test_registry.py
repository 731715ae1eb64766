"""The registry: every KM2xx problem with its place, immutability, folders, provider packages."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import pydantic
import pytest

from kernelmap.check import check_all
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.registry import load_registry, read_registry
from kernelmap.rules.registry import RULES
from support import (
    GROUP,
    World,
    contract_value,
    make_circuit,
    make_host,
    make_map,
    map_value,
    registry_of,
    write_json,
    write_registry,
)

Json = dict[str, Any]
CONTRACT = f"contracts/{GROUP}.json"
FAMILY = contract_value(
    "toy_{weight}",
    weights=[{"name": "weight", "dtype": "{weight}", "shape": ["H", "H"]}],
    formats=[{"weight": "q8_0"}, {"weight": "q4_k"}],
)
SPLIT = {"name": "parallel", "requires": ["avx2"], "fallback": "serial"}
HOOK = map_value("toy", budget=1)["weight_preparation"][0]
EVIDENCE: Json = {
    "schema_version": 1, "provider": "toy", "contract_digest": "c", "map_digest": "m", "source_digest": "s",
    "reference_digest": "r", "corpus_digest": "o", "host": "h", "isa_paths": [], "toolchain": {}, "cases": 1,
    "worst_error": 0.0, "seconds": 0.0, "result": "pass",
}  # fmt: skip


def sound() -> dict[str, Json]:
    """A sound registry: one contract, one family, two maps, one certificate, by file name."""
    return copy.deepcopy(
        {
            "toy.json": map_value("toy", variants=[SPLIT, {"name": "serial"}], scratch=[], weight_preparation=[]),
            "other.json": map_value("other", priority=50),
            CONTRACT: contract_value(),
            "contracts/toy_family.json": FAMILY,
            "evidence/toy.json": EVIDENCE,
        }
    )


@dataclass(frozen=True)
class Case:
    """An edit of the sound registry, with the problem that it must give."""

    code: str
    file: str
    pointer: str
    edit: Callable[[dict[str, Json]], object]
    says: str
    near: tuple[str, ...] = ()


def put(file: str, pointer: str, value: Any) -> Callable[[dict[str, Json]], None]:
    """An edit that sets the value at a pointer."""

    def edit(files: dict[str, Json]) -> None:
        *parents, last = pointer.removeprefix("/").split("/")
        at: Any = files[file]
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        at[int(last) if isinstance(at, list) else last] = value

    return edit


def scratch(name: str, size: str) -> Callable[[dict[str, Json]], None]:
    return put("toy.json", "/scratch", [{"name": name, "size_bytes": size}])


def hooks(*weights: str, size: str = "H") -> Callable[[dict[str, Json]], None]:
    return put("toy.json", "/weight_preparation", [{**HOOK, "weights": list(weights), "prepared_bytes": size}])


def add(file: str, value: Json) -> Callable[[dict[str, Json]], None]:
    return lambda files: files.__setitem__(file, value)


PORT = {"name": "x", "dtype": "fp32", "shape": ["R", "H"]}
FAMILY_FILE = "contracts/toy_family.json"
CASES = [
    Case("KM202", "toy.json", "/id", put("toy.json", "/id", "toys"), "id 'toys' in a file named 'toy'"),
    Case("KM202", "contracts/misnamed.json", "/equivalence_group",
         add("contracts/misnamed.json", contract_value("toy_named")), "'toy_named' in a file named 'misnamed'"),
    Case("KM203", "toy.json", "/selection/equivalence_group",
         put("toy.json", "/selection/equivalence_group", "toy_fp23"), "'toy_fp23' has no contract", (GROUP,)),
    Case("KM204", "toy.json", "/selection/priority", put("toy.json", "/selection/priority", 50),
         "equals that of 'other' in prefill and decode"),
    Case("KM205", "toy.json", "/constraints/dims/R", put("toy.json", "/constraints", {"dims": {"R": {"min": 8}}}),
         "dynamic dim 'R'"),
    Case("KM206", "toy.json", "/impl/variants/0", put("toy.json", "/impl/variants/0",
         {"name": "parallel", "requires": ["avx2"]}), "names no fallback"),
    Case("KM206", "toy.json", "/impl/variants/0/fallback", put("toy.json", "/impl/variants/0/fallback", "seriel"),
         "'seriel' is no declared variant", ("serial",)),
    Case("KM207", "toy.json", "/impl/function", put("toy.json", "/impl/function", "os:system"), "'os' lies in no"),
    Case("KM207", "toy.json", "/impl/variants/0/function", put("toy.json", "/impl/variants/0/function",
         "kernelmap_providers_evil.toy:f"), "'kernelmap_providers_evil.toy' lies in no"),
    Case("KM207", "toy.json", "/weight_preparation/0/function", put("toy.json", "/weight_preparation",
         [{**HOOK, "function": "subprocess:run"}]), "'subprocess' lies in no"),
    Case("KM208", "toy.json", "/op", put("toy.json", "/op", "toy_mul"), "contract is for 'toy_matmul'"),
    Case("KM209", "toy.json", "/scratch/0/size_bytes", scratch("work", "align64(W * threads)"), "size names 'W'"),
    Case("KM209", "toy.json", "/weight_preparation/0/prepared_bytes", hooks("weight", size="R * H"),
         "size names 'R'"),
    Case("KM210", "toy.json", "/constraints/dims/G", put("toy.json", "/constraints", {"dims": {"G": {"min": 8}}}),
         "unknown dim 'G'"),
    Case("KM210", "toy.json", "/impl/variants/0/shape_constraints", put("toy.json",
         "/impl/variants/0/shape_constraints", {"Q_min": 2}), "guard on unknown dim 'Q'"),
    Case("KM211", "toy.json", "/weight_preparation/0/weights/0", hooks("weigth"), "'weigth' is no weight port",
         ("weight",)),
    Case("KM211", "toy.json", "/weight_preparation/0/weights/1", hooks("weight", "weight"), "prepared twice"),
    Case("KM213", CONTRACT, "/equivalence_group", put(FAMILY_FILE, "/formats", [{"weight": "fp32"}]),
         f"group '{GROUP}' has two contracts"),
    Case("KM214", "toy.json", "/scratch/0/name", scratch("x", "64"), "'x' is taken"),
    Case("KM214", "toy.json", "/scratch/0/name", scratch("threads", "64"), "'threads' is taken"),
    Case("KM214", "toy.json", "/scratch/1/name", put("toy.json", "/scratch",
         [{"name": "work", "size_bytes": "64"}] * 2), "'work' is taken"),
    Case("KM215", "toy.json", "/impl/variants/1/fallback", put("toy.json", "/impl/variants",
         [{"name": "serial"}, SPLIT]), "stands before it"),
    Case("KM218", "evidence/toy.json", "/provider", put("evidence/toy.json", "/provider", "gone"),
         "unknown provider 'gone'"),
    Case("KM221", CONTRACT, "/outputs/0/name", put(CONTRACT, "/outputs/0/name", "x"), "'x' is used twice"),
    Case("KM221", CONTRACT, "/inputs/0/name", put(CONTRACT, "/inputs/0/name", "threads"), "or reserved"),
    Case("KM221", CONTRACT, "/params/0/name", put(CONTRACT, "/params", [{"name": "weight", "type": "int"}]),
         "parameter name 'weight'"),
    Case("KM222", CONTRACT, "/inputs/0/shape/1", put(CONTRACT, "/inputs/0/shape", ["R", "Hh"]), "undeclared dim 'Hh'",
         ("H",)),
    Case("KM222", CONTRACT, "/dynamic_dims/1", put(CONTRACT, "/dynamic_dims", ["R", "T"]), "undeclared dim 'T'"),
    Case("KM222", CONTRACT, "/alignment/R", put(CONTRACT, "/alignment", {"R": 8}), "no static dim"),
    Case("KM222", CONTRACT, "/weights/0/shape", put(CONTRACT, "/weights/0/shape", []), "has no shape"),
    Case("KM223", FAMILY_FILE, "/inputs/0/dtype", put(FAMILY_FILE, "/inputs/0/dtype", "{wieght.act}"),
         "'wieght', which is no weight port"),
    Case("KM223", FAMILY_FILE, "/equivalence_group", put(FAMILY_FILE, "/equivalence_group", "toy_{bias}"),
         "nothing fills {bias}"),
    Case("KM223", FAMILY_FILE, "/arithmetic/chain", put(FAMILY_FILE, "/arithmetic", {"chain": "{weight.foo}"}),
         "a hole is {port}, {port.act} or {option}"),
    Case("KM224", CONTRACT, "/weights/0/dtype", put(CONTRACT, "/weights/0/dtype", "q8_00"),
         "unknown dtype or format 'q8_00'", ("q8_0",)),
    Case("KM224", CONTRACT, "/dtype_vars/T/0", put(CONTRACT, "/dtype_vars", {"T": ["q4_k"]}), "number type 'q4_k'"),
    Case("KM224", FAMILY_FILE, "/formats/0/weight", put(FAMILY_FILE, "/formats/0/weight", "q8_k"),
         "unknown weight format 'q8_k'"),
    Case("KM225", CONTRACT, "/requires/0", put(CONTRACT, "/requires", ["H % 64 == 0 and R > 1"]),
         "'R' is no static dim or parameter"),
    Case("KM226", FAMILY_FILE, "/formats/1", put(FAMILY_FILE, "/formats/1", {}), "no format for 'weight'"),
    Case("KM226", FAMILY_FILE, "/formats/0/bias", put(FAMILY_FILE, "/formats/0/bias", "q8_0"),
         "'bias' is no weight port"),
    Case("KM226", FAMILY_FILE, "/formats", put(FAMILY_FILE, "/formats/1/weight", "q8_0"), "listed twice"),
]  # fmt: skip


def write_files(folder: Path, files: dict[str, Json]) -> Path:
    for name, value in files.items():
        write_json(folder / name, value)
    return folder


def found_in(folder: Path) -> list[Diagnostic]:
    return read_registry([folder], shipped=False).problems


def test_the_sound_registry_is_sound(tmp_path: Path) -> None:
    folder = write_files(tmp_path, sound())
    assert found_in(folder) == []
    registry = load_registry([folder], shipped=False)
    assert list(registry.maps) == ["other", "toy"]
    assert list(registry.contracts) == [GROUP, "toy_q4_k", "toy_q8_0"]
    assert [item.id for item in registry.ladders[GROUP]] == ["toy", "other"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{case.file}{case.pointer}")
def test_problem(case: Case, tmp_path: Path) -> None:
    files = sound()
    case.edit(files)
    found = [
        item
        for item in found_in(write_files(tmp_path, files))
        if item.place is not None
        and (item.code, item.place.pointer) == (case.code, case.pointer)
        and item.place.file == str(tmp_path / case.file)
    ]
    assert len(found) == 1, [f"{item} {item.place and item.place.pointer}" for item in found_in(tmp_path)]
    item = found[0]
    assert case.says in item.message
    assert item.near[: len(case.near)] == case.near
    assert item.place is not None
    lines = (tmp_path / case.file).read_text(encoding="utf-8").splitlines()
    assert item.place.source_line == lines[item.place.line - 1]
    last = case.pointer.rpartition("/")[2]
    if not last.isdigit():
        assert f'"{last}"' in item.place.source_line, "the line is that of the field"
    with pytest.raises(KernelmapError) as caught:
        load_registry([tmp_path], shipped=False)
    assert item in caught.value.diagnostics


def test_every_code_of_the_catalogue_is_provoked() -> None:
    """KM201, KM216, KM217 have tests of their own below, lints in ``test_lints``, KM255 in ``promotion``."""
    own = {"KM201", "KM216", "KM217", "KM251", "KM252", "KM253", "KM254", "KM255"}
    assert {case.code for case in CASES} | own == {rule.code for rule in RULES}


def test_all_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    files = sound()
    files["toy.json"]["op"] = "wrong"
    files["toy.json"]["impl"]["function"] = "os:system"
    files["other.json"]["selection"]["equivalence_group"] = "nowhere"
    files[CONTRACT]["dynamic_dims"] = ["R", "T"]
    write_files(tmp_path, files)
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    codes = [item.code for item in found_in(tmp_path)]
    assert codes.count("KM203") == 2, "toy too: its contract is unsound and thus absent"
    assert {"KM207", "KM222", "KM008"} <= set(codes)


def test_one_id_in_two_folders(tmp_path: Path) -> None:
    one = write_registry(tmp_path / "one", [map_value("toy")], [contract_value()])
    two = write_registry(tmp_path / "two", [map_value("toy", priority=7)])
    (problem,) = read_registry([one, two], shipped=False).problems
    assert problem.code == "KM201"
    assert problem.place is not None
    assert (problem.place.file, problem.place.pointer) == (str(two / "toy.json"), "/id")
    assert str(one / "toy.json") in problem.help


def test_one_contract_in_two_folders(tmp_path: Path) -> None:
    one = write_registry(tmp_path / "one", [], [contract_value()])
    two = write_registry(tmp_path / "two", [], [contract_value()])
    (problem,) = read_registry([one, two], shipped=False).problems
    assert problem.code == "KM213"
    assert problem.place is not None
    assert problem.place.file == str(two / CONTRACT)
    assert str(one / CONTRACT) in problem.help


def test_the_same_folder_twice_counts_once(tmp_path: Path) -> None:
    folder = write_registry(tmp_path, [map_value("toy")], [contract_value()])
    assert list(load_registry([folder, folder], shipped=False).maps) == ["toy"]


def test_folders_share_contracts(tmp_path: Path) -> None:
    one = write_registry(tmp_path / "one", [], [contract_value()])
    two = write_registry(tmp_path / "two", [map_value("toy")])
    for folders in ([one, two], [two, one]):
        assert list(load_registry(folders, shipped=False).maps) == ["toy"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KernelmapError) as caught:
        load_registry([tmp_path / "no", tmp_path / "nor"], shipped=False)
    assert [item.code for item in caught.value.diagnostics] == ["KM216", "KM216"]
    assert "nor" in caught.value.diagnostics[1].message


def test_a_tie_in_one_phase_is_enough(tmp_path: Path) -> None:
    maps = [map_value("a", phases=["prefill"]), map_value("b", phases=["decode"]), map_value("c", isa=["avx2"])]
    problems = found_in(write_registry(tmp_path, maps, [contract_value()]))
    assert [(item.code, item.place and Path(item.place.file).name) for item in problems] == [("KM204", "c.json")] * 2
    assert "'a' in prefill" in problems[0].message
    assert "'b' in decode" in problems[1].message


def test_equal_priorities_in_different_phases_or_groups_are_no_tie(tmp_path: Path) -> None:
    maps = [map_value("a", phases=["prefill"]), map_value("b", phases=["decode"]), map_value("c", "toy_too")]
    assert found_in(write_registry(tmp_path, maps, [contract_value(), contract_value("toy_too")])) == []


def test_missing_functions_are_found_without_importing(tmp_path: Path) -> None:
    folder = write_registry(
        tmp_path,
        [
            map_value("a", priority=1),
            map_value("b", priority=2, impl={"backend": "numba", "function": "kernelmap_providers.simd:nothing_here",
                                             "variants": [{"name": "serial"}]}),
        ],
        [contract_value()],
    )  # fmt: skip
    found = {
        item.place.file: item
        for item in check_all([folder]).problems
        if item.code == "KM217" and item.place is not None and item.place.file.startswith(str(tmp_path))
    }
    assert "module 'kernelmap_providers.toy' does not exist" in found[str(tmp_path / "a.json")].message
    assert "defines no 'nothing_here'" in found[str(tmp_path / "b.json")].message
    assert all(item.place and item.place.pointer == "/impl/function" for item in found.values())


# Immutability


def test_a_registry_cannot_be_changed() -> None:
    registry = registry_of([make_map("toy")])
    with pytest.raises(TypeError):
        registry.maps["x"] = registry.maps["toy"]  # type: ignore[index]
    with pytest.raises(TypeError):
        registry.ladders[GROUP] = ()  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        registry.maps = {}  # type: ignore[misc]
    with pytest.raises(pydantic.ValidationError):
        registry.maps["toy"].id = "other"
    with pytest.raises(pydantic.ValidationError):
        registry.maps["toy"].selection.priority = 7


def test_without_and_with_maps_leave_the_registry_alone() -> None:
    registry = registry_of([make_map("a", priority=1), make_map("b", priority=2)])
    assert list(registry.without(["a"]).maps) == ["b"]
    raised = registry.with_maps([make_map("a", priority=3)])
    assert [item.id for item in raised.ladders[GROUP]] == ["a", "b"]
    assert [item.id for item in registry.ladders[GROUP]] == ["b", "a"]


def test_resolving_leaves_the_registry_alone() -> None:
    registry = registry_of([make_map("toy")])
    before = registry.maps["toy"].model_dump_json()
    World(registry, make_circuit(), make_host()).plan()
    assert registry.maps["toy"].model_dump_json() == before
    assert registry == registry_of([make_map("toy")])


# Provider packages

_LOAD = """
import sys
from kernelmap.registry import load_registry
from kernelmap.sources import provider_packages
registry = load_registry()
item = registry.maps["acme_toy"]
print([package.name for package in provider_packages()], registry.sources["acme_toy"].name)
assert "acme_kernels" not in sys.modules, "a provider package was imported"
"""


def _install(site: Path, maps: list[Json], contracts: list[Json]) -> None:
    """A provider package as pip would leave it: a package with maps, and metadata with an entry point."""
    package = site / "acme_kernels"
    write_registry(package / "kernel_maps", maps, contracts)
    (package / "__init__.py").write_text("raise AssertionError('imported')\n", encoding="utf-8")
    info = site / "acme_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[kernelmap.providers]\nacme = acme_kernels\n", encoding="utf-8")


def _run(site: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{program}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_provider_package_brings_its_own_maps(tmp_path: Path) -> None:
    item = map_value("acme_toy", "acme_toy_fp32")
    item["impl"]["function"] = "acme_kernels.fast:acme_toy"
    _install(tmp_path, [item], [contract_value("acme_toy_fp32")])
    found = _run(tmp_path, _LOAD)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("['acme_kernels', 'kernelmap_providers']")
    assert str(tmp_path / "acme_kernels" / "kernel_maps" / "acme_toy.json") in found.stdout


def test_a_provider_package_may_serve_only_from_registered_packages(tmp_path: Path) -> None:
    item = map_value("acme_toy", "acme_toy_fp32")
    item["impl"]["function"] = "acme_kernels_unregistered:acme_toy"
    _install(tmp_path, [item], [contract_value("acme_toy_fp32")])
    found = _run(tmp_path, _LOAD)
    assert found.returncode == 1
    assert "KM207" in found.stderr
