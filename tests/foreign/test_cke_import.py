"""Reading another engine's folder: every file in one list, every field carried or listed, nothing that crashes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cke_maps import FIXTURES, newer, older, write

from kernelmap.cli import main
from kernelmap.cli.main import run
from kernelmap.errors import KernelmapError
from kernelmap.foreign import writing
from kernelmap.foreign.cke import Imported, import_cke
from kernelmap.foreign.cke_map import identifier
from kernelmap.jsonsource import MAX_BYTES
from kernelmap.models.foreign_report import ForeignImport
from kernelmap.registry import read_registry
from kernelmap.schema_files import schema_text


def one(tmp_path: Path, value: Any, name: str = "m") -> Imported:
    return import_cke(write(tmp_path / "in", **{name: value}))


def refusals(tmp_path: Path, value: Any) -> list[tuple[str, str]]:
    """(code, pointer) of the problems of a folder with one file."""
    found = one(tmp_path, value)
    assert len(found.report.failed) == 1 and not found.maps
    return [(item.code, item.place.pointer if item.place else "") for item in found.problems]


def names(items: Any) -> set[str]:
    return {item.file for item in items}


def test_every_fixture_is_in_the_list_that_it_belongs_to() -> None:
    report = import_cke(FIXTURES).report
    assert names(report.unselected) == {"gemv_q8.json", "gemv_q8_fused.json", "embed_rows.json", "null_selection.json"}
    assert names(report.registries) == {"KERNEL_INDEX.json", "kernel_bindings.json"}
    broken = {path.name for path in FIXTURES.glob("bad_*.json")} | {"twin.json"}
    assert names(report.failed) == broken and len(broken) == 10
    lists = (report.imported, report.unselected, report.registries, report.failed)
    everything = [item.file for part in lists for item in part]
    assert len(everything) == len(set(everything)) == report.files == len(list(FIXTURES.glob("*.json")))
    assert len(report.imported) == 13 and report.skipped == ("README.md",)
    assert {item.foreign_id for item in report.imported if item.other_name} == {"Experts-Bucketed"}


def test_broken_files_are_refused_each_with_its_code_and_place() -> None:
    found = import_cke(FIXTURES)
    codes = {item.file: {problem.code for problem in item.problems} for item in found.report.failed}
    assert codes == {
        "bad_array.json": {"KM010"}, "bad_cut.json": {"KM008"}, "bad_duplicate_key.json": {"KM009"},
        "bad_empty.json": {"KM007"}, "bad_object.json": {"KM850"}, "bad_selection.json": {"KM851"},
        "bad_twin.json": {"KM852"}, "bad_types.json": {"KM851"}, "bad_utf16.json": {"KM005"}, "twin.json": {"KM852"},
    }  # fmt: skip
    assert all(item.place is not None and item.place.line > 0 for item in found.problems)
    for item in found.report.failed:
        assert all(problem.file == item.file for problem in item.problems), "a report says nothing of the machine"
    types = [
        problem.pointer for item in found.report.failed if item.file == "bad_types.json" for problem in item.problems
    ]
    fields = ("status", "priority", "equivalence_group", "phases")
    assert types == ["/id", "/op", *(f"/selection/{name}" for name in fields)]


def test_what_has_a_place_here_is_carried_over(tmp_path: Path) -> None:
    found = {item.id: item for item in import_cke(FIXTURES).maps}
    vnni, plain = found["cke_gemm_q4k_vnni"], found["cke_gemm_q4k_plain"]
    assert vnni.requires.isa == ("avx2", "avxvnni"), "avx_vnni is avxvnni here"
    assert {name: limit.multiple_of or limit.min for name, limit in vnni.constraints.dims.items()} == {"K": 256, "M": 1}
    assert [(item.name, str(item.size_bytes), item.alignment) for item in vnni.scratch] == [
        ("tiles", "M * K", 64), ("pages", "4096", 64),
    ]  # fmt: skip
    assert vnni.foreign is not None and plain.foreign is not None
    assert vnni.foreign.function == "gemm_q4k_vnni" and vnni.foreign.formats["weight"] == "q4_k"
    assert [(port.role, port.name, port.shape) for port in vnni.foreign.ports] == [
        ("input", "a", ("M", "K")), ("weight", "w", ("N", "K")), ("output", "c", ("M", "N")),
    ]  # fmt: skip
    assert [(item.name, item.isa) for item in plain.foreign.variants] == [("avx2", ("avx2", "fma")), ("scalar", ())]
    library = found["cke_gemm_library"].foreign
    assert library is not None and library.ports[0].role == "weight", "a table of ports is listed, not guessed at"
    assert library.unread_constraints == ("/constraints/external_runtime", "/constraints/alignment")
    assert vnni.foreign.unread_constraints == ()
    assert found["cke_attn_tmma"].foreign.unknown_needs == ("made_up_matrix_unit",)  # type: ignore[union-attr]


def leaves(value: Any, path: str = "") -> list[str]:
    if not isinstance(value, (dict, list)) or not value:
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for key, child in items for leaf in leaves(child, f"{path}/{key}")]


def plain(text: str) -> str:
    """Ids are lower case here, and features have other dashes."""
    return text.lower().replace("_", "").replace("-", "")


def test_every_leaf_of_a_map_is_carried_over_or_listed() -> None:
    """The listed pointers and the carried values together make up the whole file."""
    found = import_cke(FIXTURES)
    made = {item.id: plain(item.model_dump_json()) for item in found.maps}
    for entry in found.report.imported:
        value = json.loads((FIXTURES / entry.file).read_text(encoding="utf-8"))
        listed = set(entry.not_carried)
        for leaf in leaves(value):
            above = {leaf[:end] for end in range(len(leaf) + 1) if leaf[end : end + 1] in ("/", "")}
            carried = value
            for part in leaf.split("/")[1:]:
                carried = carried[int(part) if isinstance(carried, list) else part]
            if not above & listed and carried not in ([], {}):
                assert plain(str(carried)) in made[entry.id], f"{entry.file}: {leaf} vanished"
    trial = next(item for item in found.report.imported if item.foreign_id == "gemm_q4k_trial")
    assert {"/weight_preparation", "/call_abi", "/numerical_capabilities", "/inputs/0/layout"} <= set(trial.not_carried)
    probe = next(item for item in found.report.imported if item.foreign_id == "gemm_q4k_probe")
    assert "/selection/phases/1" in probe.not_carried and "/selection" not in probe.not_carried
    older_map = next(item for item in found.report.unselected if item.foreign_id == "gemv_q8")
    assert not {"/id", "/op"} & set(older_map.not_carried) and "/impl" in older_map.not_carried


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("status", "golden"), ("status", None), ("status", ["production"]), ("priority", -1), ("priority", 1_000_001),
        ("priority", True), ("priority", 1.5), ("equivalence_group", 3), ("equivalence_group", "x" * 201),
        ("phases", []), ("phases", ["training"]), ("phases", "prefill"), ("phases", [["prefill"]]),
    ],
)  # fmt: skip
def test_a_doubtful_selection_is_refused_and_not_guessed(tmp_path: Path, part: str, value: Any) -> None:
    made = newer("m")
    made["selection"][part] = value
    assert refusals(tmp_path, made) == [("KM851", f"/selection/{part}")]


@pytest.mark.parametrize("field", ["id", "op"])
@pytest.mark.parametrize("value", [None, "", 0, [], {}, "x" * 201])
def test_a_map_without_identity_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    assert refusals(tmp_path, {**newer("m"), field: value}) == [("KM851", f"/{field}")]
    without = {key: item for key, item in newer("m").items() if key != "id"}
    assert [code for code, _ in refusals(tmp_path / "b", without)] == ["KM851"]


@pytest.mark.parametrize(
    "odd",
    [
        {"impl": None}, {"impl": []}, {"impl": {"function": 7, "variants": {}}}, {"impl": {"variants": ["avx2", None]}},
        {"constraints": []}, {"constraints": {"isa": {"x86": "avx2"}}}, {"constraints": {"isa": [1]}},
        {"constraints": {"alignment": {"K": -1, "k": 8, "L": 1.5, "N": True, "P": 0}}},
        {"constraints": {"shape_classes": {"M": [1], "N": {"min": "1"}}}}, {"scratch": {}}, {"scratch": [None, 3, {}]},
        {"scratch": [{"name": "a", "size_bytes": -1}, {"name": "b", "size_bytes": "__import__('os')"}]},
        {"scratch": [{"name": "a", "size_bytes": "M"}, {"name": "a", "size_bytes": "K"}]}, {"quant": "q4_k"},
        {"quant": {"w" * 3000: "q4_k", "v": "q" * 3000}},
        {"inputs": "a"}, {"inputs": [[], {"name": "a"}, {"shape": 3}]},
        {"numerical_contract": 3}, {"numerical_contract": "n" * 3000},
        {"weight_preparation": {"function": "os:system"}},
    ],
)  # fmt: skip
def test_odd_fields_are_listed_and_never_crash(tmp_path: Path, odd: dict[str, Any]) -> None:
    found = one(tmp_path, {**newer("m"), **odd})
    assert not found.problems and len(found.maps) == 1
    (entry,) = found.report.imported
    (key,) = odd
    assert any(pointer == f"/{key}" or pointer.startswith(f"/{key}/") for pointer in entry.not_carried)
    assert found.maps[0].weight_preparation == () and found.maps[0].impl.function is None


def test_needs_that_cannot_be_read_count_as_unmet(tmp_path: Path) -> None:
    """To drop a need would make a map look eligible where it is not."""
    value = newer("m", constraints={"isa": {"x86": "avx2"}}, impl={"variants": [{"requires": ["avx2"]}, "scalar"]})
    about = one(tmp_path, value).maps[0].foreign
    assert about is not None and about.unknown_needs == ("constraints.isa is no list of features",)
    assert all(variant.unknown_needs for variant in about.variants) and len(about.variants) == 2


def test_names_that_differ_get_ids_that_differ() -> None:
    words = ["a.b", "a-b", "a_b", "A_B", "a b", "ä", "名", "x" * 190, "x" * 191]
    ids = [identifier(word) for word in words]
    assert len(set(ids)) == len(ids) and ids[2] == "cke_a_b"
    assert all(item.replace("_", "").isalnum() and item.isascii() and len(item) <= 200 for item in ids)


def test_hostile_entries_of_a_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", good=newer("good"))
    (folder / "loop.json").symlink_to(folder / "loop.json")
    (folder / "nowhere.json").symlink_to(tmp_path / "none")
    (folder / "around").symlink_to(folder)
    os.mkfifo(folder / "pipe.json")
    (folder / "directory.json").mkdir()
    (folder / "deep.json").write_text('{"op": ' + "[" * 100_000, encoding="utf-8")
    (folder / "bom.json").write_bytes(b"\xef\xbb\xbf{}")
    (folder / "latin.json").write_bytes('{"id": "é"}'.encode("latin-1"))
    (folder / "number.json").write_text('{"op": "g", "id": "g", "n": 1e999}', encoding="utf-8")
    (folder / "null.json").write_text("null", encoding="utf-8")
    with (folder / "huge.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    Path(os.fsdecode(bytes(folder / "x") + b"\xff.json")).write_text("[]", encoding="utf-8")
    (folder / "UPPER.JSON").write_text(json.dumps(older("UPPER")), encoding="utf-8")
    found = import_cke(folder)
    codes = {item.file: [problem.code for problem in item.problems] for item in found.report.failed}
    assert codes == {
        "loop.json": ["KM002"], "nowhere.json": ["KM002"], "pipe.json": ["KM002"], "deep.json": ["KM006"],
        "bom.json": ["KM004"], "latin.json": ["KM005"], "number.json": ["KM011"], "null.json": ["KM010"],
        "huge.json": ["KM003"], "x\ufffd.json": ["KM010"],
    }  # fmt: skip
    assert names(found.report.imported) == {"good.json"} and names(found.report.unselected) == {"UPPER.JSON"}
    assert found.report.skipped == ("around", "directory.json")
    assert str(tmp_path) not in found.report.model_dump_json()
    found.report.model_dump_json().encode("utf-8")


def test_six_hundred_files_of_mixed_vintage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for index in range(600):
        name = f"k{index:03}"
        value: Any = newer(name, group=f"group_{index // 6}", priority=index % 6)
        value = [value, older(name), {"kernels": [{"name": name}]}, [value], {**value, "id": None}][index % 5]
        text = json.dumps(value)
        (folder / f"{name}.json").write_text(text if index % 50 else text[: len(text) // 2], encoding="utf-8")
    code = run(["import-cke", str(folder), "--output", str(tmp_path / "out"), "--format", "json"])
    report = ForeignImport.model_validate_json(capsys.readouterr().out)
    parts = (report.imported, report.unselected, report.registries, report.failed)
    assert code == 1 and sum(map(len, parts)) == report.files == 600
    assert [len(part) for part in parts] == [108, 120, 120, 252]
    loaded = read_registry((tmp_path / "out",), shipped=False)
    assert not loaded.problems and len(loaded.registry.maps) == 108


def test_written_import_passes_check_and_fits_the_schemas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["import-cke", str(FIXTURES), "--output", str(out)]) == 1, "files failed"
    said = capsys.readouterr()
    assert "13  imported as foreign maps (not executable)" in said.out
    assert said.err.rstrip().endswith("15 errors")
    assert all(len(line) <= 80 for line in said.out.splitlines() if str(tmp_path) not in line)
    report = out / writing.REPORT
    assert run(["check", str(out), str(report), "--strict"]) == 0
    assert "checked 13 maps, 1 other file: 0 errors, 0 warnings" in capsys.readouterr().out
    jsonschema.validate(json.loads(report.read_text(encoding="utf-8")), json.loads(schema_text("foreign_import")))
    schema = json.loads(schema_text("kernel_map"))
    paths = sorted(out.glob("*.json"))
    for path in paths:
        jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), schema)
    assert len(paths) == 13 and not list(tmp_path.glob(".*")), "nothing temporary is left"
    again = tmp_path / "again"
    again.mkdir()
    run(["import-cke", str(FIXTURES), "--output", str(again)])  # an empty folder is as good as none
    for path in (*paths, report):
        assert (again / path.relative_to(out)).read_bytes() == path.read_bytes()


def test_all_lists_every_file_and_path(capsys: pytest.CaptureFixture[str]) -> None:
    run(["import-cke", str(FIXTURES), "--all"])
    out = capsys.readouterr().out
    assert "bad_utf16.json" in out and "experts_bucketed_v2.json has id Experts-Bucketed" in out
    assert "/selection/phases/1" in out.split() and "/weight_preparation" in out.split() and "more (" not in out


def test_an_import_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write(tmp_path / "in", m=newer("m")), tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    for place in (out, out / "mine.txt", source):
        before = sorted(tmp_path.rglob("*"))
        assert run(["import-cke", str(source), "--output", str(place)]) == 1
        assert "KM853" in capsys.readouterr().err and sorted(tmp_path.rglob("*")) == before
    assert run(["import-cke", str(source), "--output", str(tmp_path / "no" / "such" / "out")]) == 1
    assert "KM832" in capsys.readouterr().err


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    source = write(tmp_path / "in", **{f"m{index}": newer(f"m{index}") for index in range(5)})
    plain, written = Path.write_text, []

    def full(path: Path, *given: Any, **named: Any) -> int:
        written.append(path)
        if len(written) == 3:
            raise error
        return plain(path, *given, **named)

    monkeypatch.setattr(Path, "write_text", full)
    code = main.run(["import-cke", str(source), "--output", str(tmp_path / "out")])
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["in"] and len(written) == 3


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in", m=newer("m", group="theirs"))
    with pytest.raises(KernelmapError) as caught:
        import_cke(tmp_path / "none")
    assert [item.code for item in caught.value.diagnostics] == ["KM216"]
    ours = "gemm_nt_fp32"
    for word, code, said in (
        ("theirs", 2, "THEIRS=OURS"), (f"={ours}", 2, "THEIRS=OURS"), ("theirs=gemm_nt_fp33", 1, "KM854"),
        (f"other={ours}", 1, "KM854"),
    ):  # fmt: skip
        assert run(["import-cke", str(source), "--group", word, "--output", str(tmp_path / "out")]) == code
        assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root reads and writes everything")
def test_unreadable_and_unwritable(tmp_path: Path) -> None:
    source = write(tmp_path / "in", m=newer("m"), closed=newer("closed"))
    (source / "closed.json").chmod(0)
    found = import_cke(source)
    assert [item.code for item in found.problems] == ["KM002"] and len(found.maps) == 1
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(KernelmapError) as caught:
        writing.write_import(found, locked / "out")
    assert [item.code for item in caught.value.diagnostics] == ["KM832"] and not list(locked.iterdir())


def test_a_file_name_stays_on_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "in", m={"id": "m", "op": "gemm"})
    (folder / "m.json").rename(folder / "m\n::error::x.json")
    for flags in ((), ("--all",)):
        run(["import-cke", str(folder), *flags])
        out = capsys.readouterr().out
        assert "m\\u000a::error::x.json" in out and "\n::error" not in out
