"""Malformed files: each gives its code at its place, all problems come at once, and no traceback reaches a user.

A case edits one fragment of a sound file. The mark ``▲`` in the new fragment is not written: it says where the caret
must be.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelmap.circuit.loading import read_circuit
from kernelmap.cli.main import run
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.host import load_host
from kernelmap.inventory import read_inventory
from kernelmap.jsonsource import read_json
from kernelmap.models.contract import Contract
from kernelmap.models.evidence import Evidence
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.policies import read_policy
from support import circuit_value, contract_value, inventory_value, map_value, op_value

MARK = "▲"
SPLIT = {"name": "parallel", "shape_constraints": {"R_min": 8}, "fallback": "serial"}
VALUES = {
    "kernel_map": map_value(
        "toy", budget=4096, isa=["avx2"], dims={"H": {"min": 64}}, variants=[SPLIT, {"name": "serial"}],
        scratch=[{"name": "work", "size_bytes": "align64(R * H) + 64"}], caveats=["none"],
    ),
    "contract": contract_value(
        params=[{"name": "eps", "type": "float", "min": 0.0, "default": 1e-6}], requires=["H % 64 == 0"]
    ),
    "circuit": circuit_value(
        [op_value("first", when="layer < 1"),
         op_value("second", weights={"weight": {"any_of": ["a.weight", {"tensor": "b.weight", "rows": [0, "H"]}]}})],
        options={"cache": {"choices": ["fp32", "fp16"], "default": "fp32"}}, storage=None,
    ),
    "policy": {"schema_version": 1, "routes": [{"op": "router", "phase": "decode", "allow": "toy"}],
               "exclude": ["other"], "evidence": "warn", "kill_switches": ["TOY_OFF"]},
    "inventory": inventory_value(),
    "host": {"schema_version": 1, "name": "toy", "arch": "x86_64", "cpu": "generic", "isa": ["avx2", "fma"],
             "cores": 2, "threads": 4, "memory_bytes": 1024},
    "evidence": {"schema_version": 1, "provider": "toy", "contract_digest": "c", "map_digest": "m",
                 "source_digest": "s", "reference_digest": "r", "corpus_digest": "o", "host": "h", "isa_paths": [],
                 "toolchain": {}, "cases": 1, "worst_error": 0.0, "seconds": 0.5, "result": "pass"},
}  # fmt: skip
VALUES["circuit"].pop("storage")
NAMES = {"circuit": "toy_circuit.json"}
READERS = {
    "kernel_map": lambda path: validate(read_json(path), KernelMap),
    "contract": lambda path: validate(read_json(path), Contract),
    "circuit": lambda path: read_circuit(str(path)),
    "policy": read_policy,
    "inventory": read_inventory,
    "host": lambda path: load_host(str(path)),
    "evidence": lambda path: validate(read_json(path), Evidence),
}


def text_of(kind: str) -> str:
    """The sound file of a kind, as people write it, with short arrays in one line."""
    value = {"$schema": f"https://example.org/{kind}.schema.json", **VALUES[kind]}
    return json.dumps(value, indent=2) + "\n"


@dataclass(frozen=True)
class Case:
    """One malformed file: ``old`` becomes ``new``; the code must be reported at the mark."""

    kind: str
    code: str
    old: str
    new: str
    says: str = ""
    near: tuple[str, ...] = ()
    at: str = ""
    """A fragment with the mark, where the caret is not in the new one."""
    extra: bool = False
    """Whether the edit breaks something else too."""

    @property
    def marked(self) -> str:
        text = text_of(self.kind)
        assert self.old in text
        text = text.replace(self.old, self.new, 1)
        assert not self.at or self.at.replace(MARK, "") in text
        return text.replace(self.at.replace(MARK, ""), self.at, 1) if self.at else text

    @property
    def place(self) -> tuple[int, int]:
        before = self.marked.partition(MARK)[0]
        return before.count("\n") + 1, len(before) - before.rfind("\n")

    @property
    def text(self) -> str:
        return self.marked.replace(MARK, "")


M, C, K, P, N, H, E = "kernel_map", "contract", "circuit", "policy", "inventory", "host", "evidence"
LONG = "x" * 2001
CASES = [
    # The text itself
    Case(M, "KM007", '"priority": 100,', '"priority": 100 ▲"a"', "delimiter"),
    Case(M, "KM007", '"priority": 100', '"priority": 0▲100', "not JSON"),
    Case(M, "KM007", '"prefill",', "\"prefill\", ▲'decode',", "not JSON"),
    Case(C, "KM007", '"op": "toy_matmul",', '"op": "toy_matmul", ▲// a comment', "not JSON"),
    Case(M, "KM009", '"op": "toy_matmul",', '"op": "toy_matmul", ▲"op": "other",', "duplicate key 'op'"),
    Case(M, "KM009", '"backend": "numba",', '"backend": "numba", ▲"back\\u0065nd": "torch",', "'backend'"),
    Case(C, "KM011", '"min": 0.0', '"min": ▲NaN', "NaN"),
    Case(C, "KM011", '"min": 0.0', '"min": ▲-Infinity', "-Infinity"),
    Case(C, "KM011", '"min": 0.0', '"min": ▲1e999', "out of range"),
    Case(M, "KM011", '"max_total_bytes": 4096', '"max_total_bytes": ▲9223372036854775808', "out of range"),
    Case(M, "KM011", '"max_total_bytes": 4096', '"max_total_bytes": ▲' + "9" * 5000, "out of range"),
    Case(M, "KM012", '"summary": "toy"', '"summary": ▲"\\ud800"', "lone surrogate"),
    Case(C, "KM006", '"dynamic_dims": [', '"dynamic_dims": [' + "[" * 62 + "▲[", "deep"),
    # Fields
    Case(M, "KM101", '"status": "production",', "", "missing field 'status'", at='"selection": ▲{'),
    Case(M, "KM101", '"backend": "numba",', "", "missing field 'backend'", at='"impl": ▲{'),
    Case(C, "KM101", '"type": "float",', "", "missing field 'type'", at='"params": [\n    ▲{'),
    Case(C, "KM101", '"kind": "byte_exact"', "", "'kind'", at='"equivalence": ▲{'),
    Case(M, "KM102", '"backend": "numba"', '▲"backnd": "numba", "backend": "numba"', "'backnd'", ("backend",)),
    Case(M, "KM102", '"priority": 100', '"priority": 100, ▲"priorty": 1', "'priorty'", ("priority",)),
    Case(C, "KM102", '"dynamic_dims"', '▲"dynamic_dim"', "'dynamic_dim'", ("dynamic_dims",)),
    Case(K, "KM102", '"dynamic_dims"', '▲"dynamicdims"', "'dynamicdims'", ("dynamic_dims",)),
    Case(P, "KM102", '"exclude"', '▲"excludes"', "'excludes'", ("exclude",)),
    Case(N, "KM102", '"metadata"', '▲"meta_data"', "'meta_data'", ("metadata",)),
    Case(H, "KM102", '"cores": 2', '"cores": 2, ▲"core": 2', "'core'", ("cores",)),
    # Types: nothing is converted
    Case(M, "KM103", '"priority": 100', '"priority": ▲"100"', "/selection/priority"),
    Case(M, "KM103", '"priority": 100', '"priority": ▲true', "/selection/priority"),
    Case(M, "KM103", '"priority": 100', '"priority": ▲100.5', "/selection/priority"),
    Case(M, "KM103", '"priority": 100', '"priority": ▲100.0', "/selection/priority"),
    Case(M, "KM103", '"priority": 100', '"priority": ▲null', "/selection/priority"),
    Case(M, "KM103", '"summary": "toy"', '"summary": ▲7', "/summary"),
    Case(M, "KM103", '"caveats": [', '"claims": ▲"none", "caveats": [', "/claims"),
    Case(C, "KM103", '"name": "x",', '"name": "x", "optional": ▲1,', "/inputs/0/optional"),
    Case(C, "KM103", '"dims": {', '"dims": ▲[], "arithmetic": {', "/dims"),
    Case(K, "KM103", '"when": "layer < 1"', '"when": ▲true', "/blocks/main/ops/0/when"),
    Case(N, "KM103", '"toy.block_count": 1', '"toy.block_count": ▲{}', "/metadata/toy.block_count"),
    Case(H, "KM103", '"cores": 2', '"cores": ▲2.5', "/cores"),
    Case(E, "KM103", '"isa_paths": []', '"isa_paths": ▲null', "/isa_paths"),
    # Closed sets
    Case(M, "KM104", '"production"', '▲"prodution"', "/selection/status", ("production",)),
    Case(M, "KM104", '"prefill"', '▲"prefil"', "/selection/phases/0", ("prefill",)),
    Case(M, "KM104", '"numba"', '▲"numbaa"', "/impl/backend", ("numba",)),
    Case(M, "KM104", '"schema_version": 1', '"schema_version": ▲2', "/schema_version"),
    Case(C, "KM104", '"byte_exact"', '▲"byte_exakt"', "/equivalence/kind", ("byte_exact",)),
    Case(P, "KM104", '"decode"', '▲"decod"', "/routes/0/phase", ("decode",)),
    Case(P, "KM104", '"warn"', '▲"wran"', "/evidence", ("warn",)),
    Case(H, "KM104", '"x86_64"', '▲"x86"', "/arch", ("x86_64",)),
    Case(E, "KM104", '"pass"', '▲"passed"', "/result", ("pass",)),
    # Forms
    Case(M, "KM105", '"id": "toy"', '"id": ▲"Toy"', "/id"),
    Case(M, "KM105", '"kernelmap_providers.toy:toy"', '▲"kernelmap_providers.toy.toy"', "/impl/function"),
    Case(M, "KM105", '"weight"\n', '▲"weight 0"\n', "/weight_preparation/0/weights/0"),
    Case(C, "KM105", '"equivalence_group": "toy_fp32"', '"equivalence_group": ▲"toy-fp32"', "/equivalence_group"),
    Case(K, "KM105", '"value": "second.y"', '"value": ▲"second.y.z"', "/outputs/0/value"),
    Case(P, "KM105", '"TOY_OFF"', '▲"toy_off"', "/kill_switches/0"),
    Case(M, "KM105", '"dims": {\n      "H"', '"dims": {\n      ▲"h"', "/constraints/dims/h"),
    # Bounds
    Case(M, "KM106", '"priority": 100', '"priority": ▲-1', "/selection/priority"),
    Case(M, "KM106", '"priority": 100', '"priority": ▲1000001', "/selection/priority"),
    Case(M, "KM106", '"summary": "toy"', f'"summary": ▲"{LONG}"', "/summary"),
    Case(M, "KM106", '"max_total_bytes": 4096', '"max_total_bytes": ▲-5', "max_total_bytes"),
    Case(M, "KM106", '"R_min": 8', '"R_min": ▲-8', "R_min"),
    Case(C, "KM106", '"outputs": [', '"outputs": ▲[], "state": [', "/outputs", extra=True),
    Case(K, "KM106", '"architectures": [', '"architectures": ▲[], "ignores": [', "/architectures"),
    Case(H, "KM106", '"cores": 2', '"cores": ▲0', "/cores"),
    Case(E, "KM106", '"seconds": 0.5', '"seconds": ▲-0.5', "/seconds"),
    # Rules between fields
    Case(M, "KM107", '"name": "parallel"', '"name": "serial"', "same name", at='"impl": ▲{'),
    Case(
        M, "KM107", '"name": "serial"', '"name": "serial", "kill_switch": "OFF"', "exactly one variant", at='"impl": ▲{'
    ),
    Case(M, "KM107", '"R_min": 8', '"R_least": 8', "DIM_min or DIM_max", at='"shape_constraints": ▲{'),
    Case(M, "KM107", '"decode"', '"prefill"', "a phase is listed twice", at='"phases": ▲['),
    Case(M, "KM107", '"avx2"', '"avx3"', "unknown ISA feature", at='"isa": ▲['),
    Case(C, "KM107", '"type": "float"', '"type": "enum"', "an enum needs them", at='"params": [\n    ▲{'),
    Case(C, "KM107", '"default": 1e-06', '"default": -1.0', "the default is refused", at='"params": [\n    ▲{'),
    Case(K, "KM107", '"default": "fp32"', '"default": "fp64"', "none of the choices", at='"cache": ▲{'),
    Case(K, "KM107", '"type": "int"', '"type": "int", "value": 3', "a key or a literal value", at='"n_layer": ▲{'),
    Case(K, "KM107", '"block": "main"', '"mixer": "main"', "a mixer and an ffn", at='"rules": [\n      ▲{'),
    Case(N, "KM107", '"format": "fp32"', '"format": "q9_k"', "unknown format", at='"tensors": [\n    ▲{'),
    Case(N, "KM107", '"format": "fp32"', '"format": "q4_k"', "no whole q4_k blocks", at='"tensors": [\n    ▲{'),
    Case(N, "KM107", '"format": "fp32"', '"nbytes": 7, "format": "fp32"', "nbytes is 7", at='"tensors": [\n    ▲{'),
    Case(H, "KM107", '"threads": 4', '"threads": 1', "at least as many threads", at="▲{"),
    Case(H, "KM107", '"fma"', '"fmaa"', "unknown ISA feature fmaa", at='"isa": ▲['),
    Case(
        P,
        "KM107",
        '"exclude"',
        '"pin": [{"op": "a", "id": "b"}, {"op": "a", "id": "c"}], "exclude"',
        "a is pinned to b and c",
        at="▲{",
    ),
    # Expressions: the caret stands inside the string
    Case(M, "KM111", '"align64(R * H) + 64"', '"align64(R * H▲"', "')' is needed"),
    Case(M, "KM111", '"align64(R * H) + 64"', '"R ▲& H"', "means nothing here"),
    Case(M, "KM111", '"align64(R * H) + 64"', '"R * ▲* H"', "a value is needed"),
    Case(M, "KM111", '"align64(R * H) + 64"', '"▲__import__.os"', "")
    if False
    else Case(M, "KM111", '"align64(R * H) + 64"', '"R▲.H"', "an operator or the end"),
    Case(M, "KM112", '"align64(R * H) + 64"', '"R ▲% H"', "has no place in a size"),
    Case(M, "KM112", '"align64(R * H) + 64"', '"R * ▲9223372036854775808"', "64-bit"),
    Case(M, "KM114", '"align64(R * H) + 64"', '"▲allign64(R)"', "allign64", ("align64",)),
    Case(M, "KM114", '"align64(R * H) + 64"', '"R * ▲min(R)"', "min"),
    Case(M, "KM111", '"H * H"', '"' + "(" * 33 + '▲(1"', "nested more than"),
    Case(K, "KM113", '"layer < 1"', '"▲layer + 1"', "truth value"),
    Case(K, "KM111", '"layer < 1"', '"0 < layer ▲< 1"', "comparisons do not chain"),
    Case(K, "KM111", '"layer < 1"', '"has(▲)"', "takes one tensor name")
    if False
    else Case(K, "KM113", '"layer < 1"', '"not (▲layer)"', "takes a truth value"),
    Case(K, "KM111", '"config.n_layer"', '"config.▲"', "a name is needed"),
    Case(C, "KM111", '"H % 64 == 0"', '"H % 64 ▲= 0"', "means nothing here"),
    # Unions: the branch that was meant
    Case(K, "KM102", '"tensor": "b.weight"', '"tensor": "b.weight", ▲"row": 1', "'row'", ("rows",)),
    Case(K, "KM103", '"any_of": [', '"any_of": ▲7, "any": [', "any_of", extra=True),
    Case(K, "KM101", '"tensor": "b.weight",', "", "'tensor'", at='"a.weight",\n                ▲{'),
    Case(K, "KM106", '"any_of": [', '"optional": true, "any_of": ▲[], "x": [', "any_of")
    if False
    else Case(K, "KM105", '"a.weight"', '▲"a weight"', "any_of"),
    Case(K, "KM111", '            "H"\n', '            "H ▲?"\n', "means nothing here"),
    Case(K, "KM103", '"weight": "blk.{layer}.first.weight"', '"weight": ▲null', "/blocks/main/ops/0/weights/weight"),
    # A circuit by itself
    Case(K, "KM202", '"id": "toy_circuit"', '"id": ▲"toy"', "in a file named 'toy_circuit'"),
    Case(K, "KM305", '"config.n_layer"', '▲"config.n_layers"', "config 'n_layers'", ("n_layer",)),
    Case(
        K, "KM307", '"equivalence_group": "toy_fp32"', '"equivalence_group": ▲"toy_{wieght}"', "'wieght'", ("weight",)
    ),
    Case(K, "KM318", '"block": "main"', '"block": ▲"mian"', "no block 'mian'", ("main",), extra=True),
    Case(K, "KM319", '"name": "second"', '"name": ▲"first"', "two ops of block 'main'"),
]


def write(case: Case, folder: Path) -> Path:
    path = folder / NAMES.get(case.kind, "toy.json")
    path.write_text(case.text, encoding="utf-8")
    return path


def problems_of(kind: str, path: Path) -> tuple[Diagnostic, ...]:
    with pytest.raises(KernelmapError) as caught:
        READERS[kind](path)
    return caught.value.diagnostics


@pytest.mark.parametrize("kind", READERS)
def test_the_sound_file_is_sound(kind: str, tmp_path: Path) -> None:
    path = tmp_path / NAMES.get(kind, "toy.json")
    path.write_text(text_of(kind), encoding="utf-8")
    READERS[kind](path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.code}-{case.new[:40]}")
def test_bad_file(case: Case, tmp_path: Path) -> None:
    path = write(case, tmp_path)
    problems = problems_of(case.kind, path)
    found = [item for item in problems if item.code == case.code and case.says in item.message]
    assert found, [str(item) for item in problems]
    item = found[0]
    assert item.place is not None
    assert (item.place.line, item.place.column) == case.place
    assert item.place.file == str(path)
    assert item.place.source_line == case.text.split("\n")[item.place.line - 1]
    assert item.place.column - 1 + item.place.width <= max(len(item.place.source_line), item.place.column)
    assert item.near[: len(case.near)] == case.near
    assert len(problems) == 1 or case.extra, [str(item) for item in problems]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.code}-{case.new[:40]}")
def test_the_command_line_reports_it_and_prints_no_traceback(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(case, tmp_path)
    assert run(["check", str(path)]) == 1
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    assert "KM901" not in shown.err
    assert f"error[{case.code}]" in shown.err
    line, column = case.place
    assert f"{path.name}:{line}:{column}" in shown.err.replace("\n", "")


# Whole files

RAW = {
    "empty": (b"", "KM007", (1, 1)),
    "blank": (b" \n\n", "KM007", (1, 1)),
    "cut in an object": (b'{"schema_version": 1,\n "id": "toy"', "KM008", (2, 13)),
    "cut in a string": (b'{"schema_version": 1,\n "id": "to', "KM008", (2, 11)),
    "a byte order mark": (b"\xef\xbb\xbf{}", "KM004", (1, 1)),
    "latin-1": (b'{"summary": "caf\xe9"}', "KM005", (1, 17)),
    "utf-16": ('{"id": "toy"}'.encode("utf-16"), "KM005", (1, 1)),
    "an array": (b"[1, 2]", "KM010", (1, 1)),
    "a string": (b'"map"', "KM010", (1, 1)),
    "a hundred thousand brackets": (b'{"a": ' + b"[" * 100_000, "KM006", (1, 70)),
    "two documents": (b'{"id": "toy"}\n{"id": "toy"}', "KM007", (2, 1)),
    "zeros": (b"\x00" * 64, "KM007", (1, 1)),
}


@pytest.mark.parametrize("name", RAW)
def test_raw(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, code, place = RAW[name]
    path = tmp_path / "toy.json"
    path.write_bytes(data)
    for kind in ("kernel_map", "policy", "host"):
        (item,) = problems_of(kind, path)
        assert item.code == code
        assert item.place is not None
        assert (item.place.line, item.place.column) == place
    assert run(["check", str(path)]) == 1
    shown = capsys.readouterr().err
    assert f"error[{code}]" in shown
    assert "Traceback" not in shown


def test_a_missing_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems_of("kernel_map", tmp_path / "none.json")[0].code == "KM001"
    assert problems_of("kernel_map", tmp_path)[0].code == "KM002"
    assert run(["check", str(tmp_path / "none.json")]) == 1
    assert "error[KM001]" in capsys.readouterr().err


def test_all_problems_of_a_file_are_reported_in_its_order(tmp_path: Path) -> None:
    text = text_of("kernel_map")
    edits = {
        '"id": "toy"': '"id": "Toy"',
        '"production"': '"prodution"',
        '"priority": 100': '"priority": "100"',
        '"decode"': '"decoding"',
        '"backend": "numba"': '"backnd": "numba"',
        '"H * H"': '"H ** H"',
        '"max_total_bytes": 4096': '"max_total_bytes": -1',
        '"align64(R * H) + 64"': '"R % H"',
    }
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "toy.json"
    path.write_text(text, encoding="utf-8")
    problems = problems_of("kernel_map", path)
    assert sorted(item.code for item in problems) == sorted(
        ["KM105", "KM104", "KM103", "KM104", "KM101", "KM102", "KM111", "KM106", "KM112"]
    )
    places = [(item.place.line, item.place.column) for item in problems if item.place is not None]
    assert places == sorted(places)
    assert len(places) == len(problems)


def test_all_duplicate_keys_and_wrong_numbers_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "toy.json"
    path.write_text('{"a": NaN, "b": 1e999,\n "a": 99999999999999999999, "c": "\\udc00"}', encoding="utf-8")
    problems = problems_of("kernel_map", path)
    assert sorted(item.code for item in problems) == ["KM009", "KM011", "KM011", "KM011", "KM012"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["resolve", "{file}"],
        ["explain", "{file}", "op0"],
        ["resolve", "qwen35_moe", "--policy", "{file}"],
        ["resolve", "qwen35_moe", "--host", "{file}"],
        ["resolve", "qwen35_moe", "--model", "{file}"],
        ["inventory", "{file}"],
        ["list", "--maps", "{folder}"],
        ["check", "{folder}"],
    ],
    ids=lambda words: " ".join(words),
)
@pytest.mark.parametrize("name", ["two documents", "latin-1", "cut in a string", "an array", "utf-16"])
def test_no_command_shows_a_traceback(
    arguments: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, code, _ = RAW[name]
    path = tmp_path / "toy.json"
    path.write_bytes(data)
    words = [word.format(file=path, folder=tmp_path) for word in arguments]
    assert run(words) == 1
    shown = capsys.readouterr()
    assert f"error[{code}]" in shown.err
    assert "Traceback" not in shown.out + shown.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--route", "Op=toy"], "--route 'Op=toy' is malformed"),
        (["--route", "op"], "--route 'op' is malformed"),
        (["--route", "op:later=toy"], "--route 'op:later=toy' is malformed"),
        (["--pin", "op=To-y"], "--pin 'op=To-y' is malformed"),
        (["--pin", "op=a", "--pin", "op:decode=b"], "op is pinned to a and b"),
        (["--exclude", "To-y"], "--exclude 'To-y' is malformed"),
        (["--option", "cache"], "--option 'cache' is malformed"),
        (["--option", "cache=FP-16"], "--option 'cache=FP-16' is malformed"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_malformed_policy_words(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["resolve", "qwen35_moe", *words]) == 1
    shown = capsys.readouterr().err
    assert "error[KM751]" in shown
    assert says in " ".join(shown.split())
