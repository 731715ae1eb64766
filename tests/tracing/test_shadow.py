"""Shadows: wrong candidates are told by place, production stays as it was, and denied ones are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tracebox import Box, world

from kernelmap.cli import watching
from kernelmap.cli.main import run
from kernelmap.models.tracing import ShadowEvidence
from kernelmap.schema_files import schema_path

Said = tuple[int, str, str]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path) as made:
        yield made


def command(box: Box, capsys: pytest.CaptureFixture[str], *words: str) -> Said:
    capsys.readouterr()
    code = run(["run", box.model, *box.flags, "--tokens", "3", "--repeat", "1", "--threads", "1", *words])
    said = capsys.readouterr()
    assert "Traceback" not in said.err and "KM901" not in said.err
    return code, said.out, said.err


def evidence(box: Box, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    path = box.root / "evidence.json"
    code, _, _ = command(box, capsys, *words, "--shadow-output", str(path))
    value = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(json.loads(schema_path("shadow").read_text(encoding="utf-8"))).validate(value)
    return code, value


@pytest.mark.parametrize("name", ["box_mul", "box_mul_plain", "box_mul_diagnostic"])
def test_a_right_candidate_of_any_status_does_not_depart(
    box: Box, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, made = evidence(box, capsys, "--shadow", f"mul={name}")
    assert code == 0 and made["complete"] and made["within_budget"] and made["divergences"] == []
    assert [(s["phase"], s["layers"], s["calls"], s["departed"]) for s in made["subjects"]] == [
        ("prefill", "0-2", 3, 0), ("decode", "0-2", 3, 0),
    ]  # fmt: skip
    assert {s["production"] for s in made["subjects"]} == {"box_mul"} and made["subjects"][0]["candidate"] == name


def test_a_wrong_one_is_told_by_op_layer_phase_and_element(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, made = evidence(box, capsys, "--shadow", "mul=box_mul_wrong")
    assert code == 1 and made["complete"] and not made["within_budget"] and made["departed"] == 2
    first, second = made["divergences"]
    assert (first["op"], first["layer"], first["phase"], second["layer"]) == ("mul", 1, "prefill", 2)
    (difference,) = first["differences"]
    assert (difference["port"], difference["index"]) == ("y", [1, 2])
    assert difference["found"] - difference["expected"] == pytest.approx(1, rel=1e-6)
    assert (difference["count"], difference["size"]) == (1, 12) and difference["max_error"] == pytest.approx(1)
    assert bytes.fromhex(difference["found_bytes"]) == np.float32(difference["found"]).tobytes()
    assert first["expected"]["provider"] == "box_mul" and first["found"]["provider"] == "box_mul_wrong"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("rude", "wrote to its input x"),
        ("beyond", "wrote outside y"),
        ("raises", "raises ZeroDivisionError: no such luck"),
        ("refuses", "status 2, and production's is 0"),
    ],
)
def test_other_mistakes_are_told_in_words(box: Box, capsys: pytest.CaptureFixture[str], name: str, fault: str) -> None:
    code, made = evidence(box, capsys, "--shadow", f"begin:prefill=box_mul_{name}")
    assert code == 1 and made["departed"] == 1
    assert fault in made["divergences"][0]["faults"]


@pytest.mark.parametrize(("name", "found"), [("zero", -0.0), ("gap", "nan")])
def test_bytes_count_and_gaps_show(box: Box, capsys: pytest.CaptureFixture[str], name: str, found: Any) -> None:
    code, made = evidence(box, capsys, "--shadow", f"begin:prefill=box_mul_{name}")
    difference = made["divergences"][0]["differences"][0]
    assert code == 1 and difference["found"] == found
    if name == "zero":  # column 1 of the weights is 0: plus or minus zero, equal numbers
        assert difference["max_error"] == 0 and difference["expected_bytes"] != difference["found_bytes"]
    else:
        assert difference["index"] == [2, 0] and difference["max_error"] == "inf"


def test_tolerance_is_the_contracts_and_state_is_compared(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, made = evidence(box, capsys, "--shadow", "sum=box_sum_near")
    assert code == 0 and made["departed"] == 0
    assert all(0 < subject["max_error"] < 1e-3 for subject in made["subjects"])
    code, made = evidence(box, capsys, "--shadow", "sum=box_sum_forgets")
    assert code == 1 and {d["port"] for item in made["divergences"] for d in item["differences"]} == {"memory"}


@pytest.mark.parametrize(
    "shadow",
    ["mul=box_mul_wrong", "mul=box_mul_rude", "mul=box_mul_raises", "mul=box_mul_beyond", "sum=box_sum_forgets"],
)
def test_production_is_untouched(box: Box, capsys: pytest.CaptureFixture[str], shadow: str) -> None:
    """Outputs and state, over phases and calls, are those of a run without shadows."""
    saved = [box.root / "alone.npz", box.root / "beside.npz"]
    assert command(box, capsys, "--save", str(saved[0]))[0] == 0
    assert command(box, capsys, "--save", str(saved[1]), "--shadow", shadow)[0] == 1
    alone, beside = (dict(np.load(path)) for path in saved)
    assert set(alone) == set(beside) and len(alone) == 6
    assert all(alone[name].tobytes() == beside[name].tobytes() for name in alone)


@pytest.mark.parametrize(
    ("budget", "what", "code", "complete", "told"),
    [(0, "stop", 1, False, 1), (1, "stop", 1, False, 2), (2, "stop", 0, True, 2), (2, "record", 0, True, 2),
     (1, "record", 1, True, 2)],
)  # fmt: skip
def test_budgets(
    box: Box, capsys: pytest.CaptureFixture[str], budget: int, what: str, code: int, complete: bool, told: int
) -> None:
    words = ["--shadow", "mul=box_mul_wrong", "--shadow-budget", str(budget), "--on-divergence", what]
    got, made = evidence(box, capsys, *words)
    assert (got, made["complete"], made["departed"], len(made["divergences"])) == (code, complete, told, told)
    got, out, err = command(box, capsys, *words, "--format", "json")
    assert got == code and err == ""
    value = json.loads(out)
    assert ("diagnostics" in value) == (not complete)
    if complete:
        assert value["shadow"]["departed"] == told


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--shadow", "mul=box_mul_plain", "--exclude", "box_mul_plain"], "KM411"),
        (["--shadow", "mul=box_mul_plain", "--pin", "mul=box_mul"], "KM412"),
        (["--shadow", "mul=box_mul_elsewhere"], "KM405"),
        (["--shadow", "mul=box_mul_small"], "KM407"),
        (["--shadow", "mul:prefill=box_mul_decode"], "KM402"),
        (["--shadow", "mul:init=box_mul"], "KM571"),
        (["--shadow", "mul=box_sum"], "KM459"),
        (["--shadow", "mul=box_mul_wrng"], "KM457"),
        (["--shadow", "mull=box_mul"], "KM458"),
        (["--shadow", "mul"], "KM751"),
        (["--shadow", "mul=box_mul", "--phase", "prefill", "--shadow", "sum:decode=box_sum"], "KM577"),
    ],
)
def test_refusals(box: Box, capsys: pytest.CaptureFixture[str], words: list[str], code: str) -> None:
    got, _, err = command(box, capsys, *words)
    assert got == 1 and f"error[{code}]" in err


def test_evidence_that_is_required_is_required_of_shadows(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certify", "box_mul", "box_sum", *box.flags[:2], "--into", str(box.maps / "evidence")]) == 0
    words = ["--evidence", "require", "--shadow", "mul=box_mul_plain"]
    code, _, err = command(box, capsys, *words)
    assert code == 1 and "error[KM410]" in err and "box_mul_plain" in err


def test_a_kill_switch_counts_for_shadows(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = json.loads(box.map("box_mul").read_text(encoding="utf-8"))["impl"]["variants"]
    box.edit(box.map("box_mul_wrong"), lambda value: value["impl"].update(variants=wide))
    words = ["--shadow", "mul:prefill=box_mul_wrong"]
    assert evidence(box, capsys, *words)[1]["divergences"][0]["found"]["variant"] == "wide"
    monkeypatch.setenv("BOX_NO_WIDE", "1")
    assert evidence(box, capsys, *words)[1]["divergences"][0]["found"]["variant"] == "serial"


def test_without_a_phase_those_of_the_map_count(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, made = evidence(box, capsys, "--shadow", "mul=box_mul_decode")
    assert code == 0 and [item["phase"] for item in made["subjects"]] == ["decode"]


def test_several_shadows_of_one_op(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, made = evidence(box, capsys, "--shadow", "mul=box_mul_plain", "--shadow", "mul=box_mul_wrong")
    assert code == 1 and sum(item["calls"] for item in made["subjects"]) == 12
    assert {item["found"]["provider"] for item in made["divergences"]} == {"box_mul_wrong"}


@pytest.mark.parametrize(
    "words",
    [["--shadow-budget", "1"], ["--shadow-output", "x.json"], ["--on-divergence", "stop"],
     ["--shadow", "mul=box_mul", "--on-divergence", "sometimes"], ["--capture", "mul@0"], ["--capture-dir", "."],
     ["--shadow", "mul=box_mul", "--shadow-budget", "-1"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_use(box: Box, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert command(box, capsys, *words)[0] == 2


def test_a_place_that_cannot_be_written_is_told_first(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(box.root / "none" / "evidence.json")
    code, out, err = command(box, capsys, "--shadow", "mul=box_mul", "--shadow-output", nowhere)
    assert code == 1 and "error[KM572]" in err and out == ""
    code, out, err = command(box, capsys, "--shadow", "mul=box_mul", "--shadow-output", str(box.root))
    assert code == 1 and "error[KM832]" in err


def test_an_interrupted_run_leaves_evidence_that_says_so(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelmap.session import Session

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "decode", interrupted)
    code, made = evidence(box, capsys, "--shadow", "mul=box_mul")
    assert code == 130 and not made["complete"] and sum(item["calls"] for item in made["subjects"]) == 3
    assert not list(box.root.glob("*.tmp"))


def test_very_many_divergences_are_counted_and_the_first_are_told(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelmap.tracing.shadow.MOST_DIVERGENCES", 1)
    _, made = evidence(box, capsys, "--shadow", "mul=box_mul_wrong")
    assert made["departed"] == 2 and len(made["divergences"]) == 1
    assert ShadowEvidence.model_validate_json(json.dumps(made)).divergences[0].where == "mul layer 1 (prefill)"


def test_text_fits_eighty_columns(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = command(box, capsys, "--shadow", "mul=box_mul_wrong")
    assert max(map(len, (out + err).splitlines())) <= 80 and "\x1b" not in out + err
    assert "shadows: 6 calls compared, 2 depart (budget 0)" in out and "error[KM570]" in err


def test_nothing_is_watched_without_words() -> None:
    watch = watching.Watch(None, 0, "record", None, None, None)
    assert watch.code == 0 and watch.value() == {}


def test_a_kill_switch_of_a_policy_file_is_obeyed_by_run(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    policy = box.root / "policy.json"
    policy.write_text(json.dumps({"schema_version": 1, "kill_switches": ["BOX_NO_WIDE"]}), encoding="utf-8")
    code, out, err = command(box, capsys, "--policy", str(policy), "--format", "json")
    assert code == 0, err
    ran = {row["variant"] for phase in json.loads(out)["phases"].values() for row in phase["ops"]}
    assert ran == {"serial"}
    assert run(["warm", box.model, *box.flags, "--policy", str(policy)]) == 0
