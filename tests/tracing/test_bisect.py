"""Locks as plans: run exactly or refused; two of them in lockstep up to the first call that departs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tracebox import MUL, Box, forget, world

from kernelmap.cli.main import run
from kernelmap.schema_files import schema_path


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path) as made:
        yield made


def lock(box: Box, name: str, *words: str) -> str:
    path = str(box.root / f"{name}.lock.json")
    assert run(["lock", box.model, *box.flags, *words, "--output", path]) == 0
    return path


def bisect(box: Box, capsys: pytest.CaptureFixture[str], good: str, bad: str, *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    arguments = ["bisect", box.model, *box.flags, "--good", good, "--bad", bad, "--tokens", "3", "--threads", "1"]
    code = run([*arguments, "--format", "json", *words])
    said = capsys.readouterr()
    value = json.loads(said.out)
    if "diagnostics" not in value:
        jsonschema.Draft202012Validator(json.loads(schema_path("bisection").read_text())).validate(value)
    return code, value


def codes(value: Any) -> list[str]:
    return sorted({item["code"] for item in value["diagnostics"]})


def test_the_first_departing_call_is_found(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    good = lock(box, "good")
    bad = lock(box, "bad", "--route", "mul=box_mul_wrong", "--route", "sum=box_sum_forgets")
    code, value = bisect(box, capsys, good, bad)
    found = value["found"]
    assert code == 1 and (found["op"], found["layer"], found["phase"]) == ("sum", 0, "prefill")
    assert (found["expected"]["provider"], found["found"]["provider"]) == ("box_sum", "box_sum_forgets")
    assert found["differences"][0]["port"] == "memory" and len(value["compared"]) == 4 and value["same"] == 2
    bad = lock(box, "bad", "--route", "mul=box_mul_wrong")
    code, value = bisect(box, capsys, good, bad)
    assert code == 1 and (value["found"]["op"], value["found"]["layer"]) == ("mul", 1)
    assert value["found"]["differences"][0]["index"] == [1, 2]


def test_it_is_found_from_either_side(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = lock(box, "good"), lock(box, "bad", "--route", "mul=box_mul_wrong")
    code, value = bisect(box, capsys, bad, good)
    assert code == 1 and value["found"]["expected"]["provider"] == "box_mul_wrong"
    assert value["found"]["layer"] == 1


def test_what_a_tolerance_allows_is_no_fault_further_down(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """The near sum changes every later input of the byte-exact products, which are judged on equal inputs."""
    good, bad = lock(box, "good"), lock(box, "bad", "--exclude", "box_sum", "--exclude", "box_mul")
    code, value = bisect(box, capsys, good, bad)
    assert code == 0 and value["found"] is None
    assert {(item["op"], item["bad"], item["calls"]) for item in value["compared"]} == {
        ("begin", "box_mul_plain", 1), ("mul", "box_mul_plain", 3), ("sum", "box_sum_near", 3),
    }  # fmt: skip


def test_equal_locks_have_nothing_to_compare(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    good = lock(box, "good")
    code, value = bisect(box, capsys, good, good)
    assert code == 0 and value["compared"] == [] and value["found"] is None and value["same"] == 6
    assert run(["bisect", box.model, *box.flags, "--good", good, "--bad", good]) == 0
    assert "the locks choose the same: nothing to compare" in capsys.readouterr().out


def test_what_was_never_called_proves_nothing(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = lock(box, "good"), lock(box, "bad", "--route", "mul:decode=box_mul_wrong")
    code, value = bisect(box, capsys, good, bad, "--phase", "prefill")
    assert code == 1 and codes(value) == ["KM577"]
    assert bisect(box, capsys, good, bad)[0] == 0  # one row: the mistake needs two


def test_yesterdays_choice_runs_beside_a_promotion(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    good = lock(box, "good")
    box.edit(box.map("box_mul_wrong"), lambda value: value["selection"].update(status="production"))
    bad = lock(box, "bad", "--exclude", "box_mul_zero")
    code, value = bisect(box, capsys, good, bad)
    assert code == 1 and value["found"]["found"]["provider"] == "box_mul_wrong"
    code, value = bisect(box, capsys, bad, bad, "--exclude", "box_mul_wrong")
    assert code == 1 and codes(value) == ["KM411"]


EDITS: dict[str, tuple[Callable[[Box], object], list[str]]] = {
    "chosen map": (lambda b: b.edit(b.map("box_mul"), lambda v: v["selection"].update(priority=250)), ["KM803"]),
    "chosen map gone": (lambda b: b.map("box_mul").unlink(), ["KM811"]),
    "chosen map deprecated": (
        lambda b: b.edit(b.map("box_mul"), lambda v: v["selection"].update(status="deprecated")), ["KM404"],
    ),
    "contract": (lambda b: b.edit(b.contract(), lambda v: v.update(arithmetic={"product": "fp32"})), ["KM801"]),
    "source": (lambda b: append(b.site / "kernels.py"), ["KM804"]),
    "reference": (lambda b: append(b.site / "arithmetic.py"), ["KM802"]),
    "circuit": (
        lambda b: b.edit(b.root / "circuits/tracebox.json", lambda v: v["runtime"].update(prefill_chunk=16)), ["KM812"],
    ),
    "no such choice": (lambda b: relock(b, lambda c: c["prefill"]["here"].pop(0)), ["KM578"]),
    "choice too many": (
        lambda b: relock(b, lambda c: c["prefill"]["here"].append({**c["prefill"]["here"][0], "op": "none"})),
        ["KM578"],
    ),
    "choice of variants": (
        lambda b: relock(b, lambda c: c["prefill"]["here"][0].update(variants=["serial"])), ["KM808"],
    ),
}  # fmt: skip


def append(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8") + "\nX = 1\n", encoding="utf-8")


def relock(box: Box, change: Callable[[Any], object]) -> None:
    path = box.root / "good.lock.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    (choices,) = (circuit["choices"] for circuit in value["circuits"].values())
    (host,) = value["hosts"]
    for phase in choices.values():
        phase["here"] = phase.pop(host)
    change(choices)
    for phase in choices.values():
        phase[host] = phase.pop("here")
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.mark.parametrize("name", EDITS)
def test_a_lock_whose_ground_moved_is_no_plan(box: Box, capsys: pytest.CaptureFixture[str], name: str) -> None:
    good = lock(box, "good")
    change, expected = EDITS[name]
    change(box)
    forget()
    code, value = bisect(box, capsys, good, good)
    assert code == 1 and codes(value) == expected
    assert all(f"--good {good}" in item["message"] or "--bad" in item["message"] for item in value["diagnostics"])


def test_a_kill_switch_set_now_counts(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = lock(box, "good")
    monkeypatch.setenv("BOX_NO_WIDE", "1")
    code, value = bisect(box, capsys, good, good)
    assert code == 1 and codes(value) == ["KM808"]


def test_an_unknown_exclusion_must_not_look_obeyed(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    good = lock(box, "good")
    assert codes(bisect(box, capsys, good, good, "--exclude", "box_mull")[1]) == ["KM457"]


def test_a_lock_of_something_else(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(box.root / "other.lock.json")
    assert run(["lock", "qwen35_moe", "--host", "avx2_2core", "--output", other]) == 0
    assert codes(bisect(box, capsys, other, lock(box, "good"))[1]) == ["KM830"]
    assert run(["bisect", str(box.root / "circuits/tracebox.json"), "--good", other, "--bad", other]) == 1
    assert run(["bisect", box.model, *box.flags, "--good", str(box.root / "none"), "--bad", other]) == 1
    assert "KM001" in capsys.readouterr().err


def test_text_names_both_sides_within_eighty_columns(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = lock(box, "good"), lock(box, "bad", "--route", "mul=box_mul_wrong")
    capsys.readouterr()
    assert run(["bisect", box.model, *box.flags, "--good", good, "--bad", bad, "--tokens", "2"]) == 1
    out = capsys.readouterr().out
    assert "first departing call: mul layer 1 (prefill)\n    good  box_mul wide\n    bad   box_mul_wrong serial" in out
    assert "y[1, 2] is the first of 1 of 8 that depart" in out and max(map(len, out.splitlines())) <= 80


# run --locked


def run_locked(box: Box, capsys: pytest.CaptureFixture[str], path: str, *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = run(["run", box.model, *box.flags, "--locked", path, "--repeat", "1", "--format", "json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_run_locked_runs_the_locks_choices(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = lock(box, "plain", "--exclude", "box_mul")
    code, value = run_locked(box, capsys, path)
    assert code == 0
    assert {item["provider"] for item in value["executed"]} == {"box_mul_plain", "box_sum"}


@pytest.mark.parametrize("words", [["--exclude", "box_mul_plain"], ["--route", "mul=box_mul_wrong"]], ids=" ".join)
def test_run_locked_refuses_any_drift(box: Box, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    path = lock(box, "good", "--exclude", "box_mul")
    code, value = run_locked(box, capsys, path, *words)
    assert code == 1 and "executed" not in value
    box.edit(box.contract(MUL), lambda v: v.update(arithmetic={"product": "fp32"}))
    code, value = run_locked(box, capsys, path)
    assert code == 1 and codes(value) == ["KM801"]
