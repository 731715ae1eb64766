"""What a foreign registry comes to by the rules here: choices, ties, holes, mixed groups, and changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cke_maps import FIXTURES, newer, older, write

from kernelmap.cli.main import run
from kernelmap.foreign.cke import import_cke
from kernelmap.foreign.writing import write_import
from kernelmap.models.foreign_report import ForeignAudit, ForeignLadder
from kernelmap.schema_files import schema_text

HOSTS = ("--host", "avx2_2core", "--host", "avx_vnni_client")


def imported(tmp_path: Path, name: str, **maps: Any) -> Path:
    write_import(import_cke(write(tmp_path / f"{name}_in", **maps)), tmp_path / name)
    return tmp_path / name


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("foreign") / "out"
    write_import(import_cke(FIXTURES), out)
    return out


def audit(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str) -> ForeignAudit:
    capsys.readouterr()
    assert run(["foreign", str(folder), *flags, "--format", "json"]) == 0
    text = capsys.readouterr().out
    jsonschema.validate(json.loads(text), json.loads(schema_text("foreign_audit")))
    return ForeignAudit.model_validate_json(text)


def ladder(found: ForeignAudit, group: str, phase: str, host: str) -> ForeignLadder:
    (item,) = (i for i in found.ladders if (i.group, i.phase.value, i.host) == (group, phase, host))
    return item


def test_choices_of_the_fixtures(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = audit(capsys, fixtures, *HOSTS)
    assert found.executable is False and found.maps == 13 and found.hosts == ("avx2_2core", "avx_vnni_client")
    assert set(found.unselected) == {"gemv_q8", "gemv_q8_fused", "embed_rows", "null_selection"}
    for host, choice in (("avx2_2core", "cke_gemm_q4k_plain"), ("avx_vnni_client", "cke_gemm_q4k_vnni")):
        item = ladder(found, "cke_q4k_x_q8k_fp32", "prefill", host)
        assert (item.outcome, item.providers) == ("provider", (choice,))
        chosen = next(row for row in item.candidates if row.selected)
        assert chosen.limits == ("K % 256 == 0", "M >= 1") and not chosen.reasons
    item = ladder(found, "cke_q4k_x_q8k_fp32", "decode", "avx2_2core")
    assert {row.id: [reason.code for reason in row.reasons] for row in item.candidates} == {
        "cke_gemm_q4k_probe": ["KM403", "KM402"], "cke_gemm_q4k_trial": ["KM401"], "cke_gemm_q4k_vnni": ["KM405"],
        "cke_gemm_q4k_plain": [], "cke_gemm_q4k_old": ["KM404"],
    }  # fmt: skip
    assert [row.priority for row in item.candidates] == [240, 230, 220, 100, 50]


def test_ties_holes_and_groups_of_several_arithmetics_are_findings(
    fixtures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = audit(capsys, fixtures, *HOSTS)
    said = {code: [f for f in found.findings if f.code == code] for code in ("KM860", "KM861", "KM862")}
    assert len(found.findings) == sum(map(len, said.values())) and all(f.line for f in found.findings)
    assert ["cke_rope_a and cke_rope_b tie at priority 10" in f.message for f in said["KM860"]] == [True, True]
    holes = {f.message.split(" on ")[0]: f.help or "" for f in said["KM861"]}
    assert set(holes) == {
        f"{group} ({phase})"
        for group in ("cke_attention_f16", "cke_bf16_library", "cke_q4_k_gate_up_q5_k_down")
        for phase in ("prefill", "decode")
    }
    assert "made_up_matrix_unit (unknown here)" in holes["cke_attention_f16 (prefill)"]
    assert "none of its variants runs on the host: sve, variant 1" in holes["cke_attention_f16 (decode)"]
    (mixed,) = said["KM862"]
    assert (
        "numerical contract (norm_sum_fp32, norm_sum_fp64)" in mixed.message and "output (fp32, fp64)" in mixed.message
    )


def test_candidates_compete_when_asked(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = audit(capsys, fixtures, *HOSTS, "--candidates")
    assert ladder(found, "cke_q4k_x_q8k_fp32", "decode", "avx2_2core").providers == ("cke_gemm_q4k_trial",)
    assert ladder(found, "cke_q4_k_gate_up_q5_k_down", "decode", "avx2_2core").outcome == "provider"
    unsure = ladder(found, "cke_bf16_library", "decode", "avx2_2core").candidates[0]
    assert unsure.selected and unsure.limits[0] == "/constraints/external_runtime (not read)"


@pytest.mark.parametrize(
    "flags",
    [
        ("--group", "q4k_x_q8k_fp32"), ("--group", "cke_q4k_x_q8k_fp32"), ("--provider", "gemm_q4k_trial"),
        ("--provider", "cke_gemm_q4k_trial"),
    ],
)  # fmt: skip
def test_a_group_is_explained_by_either_name(
    fixtures: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    found = audit(capsys, fixtures, *flags)
    assert {item.group for item in found.ladders} == {"cke_q4k_x_q8k_fp32"} and not found.findings
    assert run(["foreign", str(fixtures), *HOSTS, *flags]) == 0
    out = capsys.readouterr().out
    assert "13 foreign maps, not executable" in out and "KM401 a candidate; no route allows it" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_findings_of_one_group(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = audit(capsys, fixtures, *HOSTS, "--group", "rope.pairs.v1")
    assert [item.code for item in found.findings] == ["KM860", "KM860"]


def test_text_is_stable_and_fits_80_columns(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        assert run(["foreign", str(fixtures)]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and all(len(line) <= 80 for line in texts[0].splitlines())
    assert "-> tie of cke_rope_a and cke_rope_b" in texts[0] and "4 maps without a selection block" in texts[0]


def test_changes_between_two_imports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = imported(
        tmp_path, "old", a=newer("a", priority=10), b=newer("b", priority=5), gone=newer("gone", group="left")
    )
    b = newer("b", priority=20)
    new = imported(tmp_path, "new", a=newer("a", priority=10, notes="prose"), b=b, c=newer("c", group="come"))
    found = audit(capsys, new, "--since", str(old), "--host", "avx2_2core")
    told = [(item.kind, item.what) for item in found.changes]
    assert told == [
        ("group added", "cke_come"), ("group removed", "cke_left"), ("map changed", "cke_b"), ("map added", "cke_c"),
        ("map removed", "cke_gone"), ("choice changed", "cke_some_group decode on avx2_2core"),
        ("choice changed", "cke_some_group prefill on avx2_2core"),
    ]  # fmt: skip
    assert (found.changes[-1].before, found.changes[-1].after) == ("cke_a", "cke_b")
    assert run(["foreign", str(new), "--since", str(old), "--host", "avx2_2core"]) == 0
    assert "  - cke_a\n  + cke_b" in capsys.readouterr().out
    assert run(["foreign", str(new), "--since", str(new)]) == 0
    assert capsys.readouterr().out == "no change\n"


def test_an_import_without_selections_has_nothing_to_choose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = imported(tmp_path, "old", a=older("a"), b=older("b"))
    found = audit(capsys, folder)
    assert found.maps == 0 and not found.ladders and found.unselected == ("a", "b")
    assert run(["foreign", str(folder)]) == 0
    assert "no group has a map" in capsys.readouterr().out


def test_findings_as_annotations(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["foreign", str(fixtures), "--format", "github"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("::warning file=") for line in lines) == 3, "two ties and a mixed group"


def test_wrong_use(fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bare").mkdir()
    for arguments, code in (
        ([str(tmp_path / "none")], "KM216"), ([str(tmp_path / "bare")], "KM855"), ([str(FIXTURES)], "KM010"),
        ([str(fixtures), "--group", "q4k_x_q8k_fp33"], "KM451"), ([str(fixtures), "--provider", "rope_c"], "KM457"),
    ):  # fmt: skip
        assert run(["foreign", *arguments]) == 1
        said = capsys.readouterr()
        assert code in said.err and not said.out
    assert run(["foreign", str(fixtures), "--group", "a", "--provider", "b"]) == 2
