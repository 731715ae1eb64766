"""Benchmarks through bind and session: who is run, what is recorded, and what is said of priorities."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from benchbox import GROUP, Box, contract, kernel_map, world, write

from kernelmap.bench.record import case_text, disagreements, isa_path, read_record
from kernelmap.models.bench import BenchRecord
from kernelmap.schema_files import schema_text


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path) as made:
        yield made


def told(box: Box, capsys: pytest.CaptureFixture[str], *flags: str, target: str = GROUP) -> tuple[int, Any]:
    capsys.readouterr()
    code = box.bench(*flags, "--format", "json", target=target)
    return code, json.loads(capsys.readouterr().out)


def test_a_group_is_timed_at_each_phase_and_the_record_says_on_what(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    code, value = told(box, capsys)
    assert code == 0
    jsonschema.validate(json.loads(box.record.read_text()), json.loads(schema_text("bench")))
    record = read_record(box.record)
    assert record == BenchRecord.model_validate_json(json.dumps(value["record"]))
    assert [(case.phase.value, case.dims) for case in record.cases] == [
        ("prefill", {"H": 24, "W": 8, "R": 3}), ("decode", {"H": 24, "W": 8, "R": 1})
    ]  # fmt: skip
    for case in record.cases:
        assert case.incumbent == "benchbox_slow" and case.copies == 2 and not case.refused
        assert {item.provider: len(item.seconds) for item in case.times} == {"benchbox_quick": 7, "benchbox_slow": 7}
    assert set(record.providers) == {"benchbox_quick", "benchbox_slow"} and set(record.contracts) == {GROUP}
    assert record.host.isa and {"python", "numpy"} <= set(record.toolchain)
    assert value["diagnostics"] == [], "the quicker one ranks higher"


def test_a_lower_rank_that_is_faster_is_warned_of_with_the_ratio(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.edit(box.map("quick"), lambda v: v["selection"].update(priority=50))
    code, value = told(box, capsys)
    assert code == 0, "a warning only"
    (warning,) = value["diagnostics"]
    assert (warning["code"], warning["severity"]) == ("KM584", "warning")
    assert "benchbox_slow (production 100) ranks above benchbox_quick (candidate 50)" in warning["message"]
    assert "in 2 of 2 cases" in warning["message"]


def test_differences_within_noise_are_not_warned_of(box: Box) -> None:
    box.edit(box.map("quick"), lambda v: v["selection"].update(priority=50))
    assert box.bench() == 0
    record = read_record(box.record)

    def warnings(slow: list[float]) -> int:
        quick = [1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.0]
        times = record.model_dump(mode="json", by_alias=True, exclude_none=True)
        for case in times["cases"]:
            for item in case["times"]:
                item["seconds"] = slow if item["provider"] == "benchbox_slow" else quick
        return len(list(disagreements(BenchRecord.model_validate_json(json.dumps(times)))))

    assert warnings([1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.0]) == 0
    assert warnings([1.5, 1.0, 2.0, 1.2, 1.9, 1.1, 1.2]) == 0, "one round says otherwise"
    assert warnings([1.01, 1.111, 0.909, 1.212, 1.01, 0.808, 1.01]) == 0, "one part in a hundred is no difference"
    assert warnings([1.1, 1.2, 1.0, 1.4, 1.1, 0.9, 1.1]) == 1


def test_denied_and_ineligible_providers_are_never_run(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    (box.site / "bomb.py").write_text("raise AssertionError('imported')\n\n\ndef matmul(spec):\n    return None\n")
    bomb = kernel_map("bomb", 300)["impl"]
    box.add(kernel_map("denied", 300, impl=bomb))
    box.add(kernel_map("diagnostic", 301, "diagnostic", impl=bomb))
    box.add(kernel_map("gone", 302, "deprecated", impl=bomb))
    box.add(kernel_map("narrow", 303, impl=bomb, constraints={"dims": {"H": {"multiple_of": 7}}}))
    box.add(kernel_map("elsewhere", 304, impl=bomb, requires={"isa": ["sve2", "avx512f"]}))
    code, value = told(box, capsys, "--exclude", "benchbox_denied")
    assert code == 0
    record = BenchRecord.model_validate_json(json.dumps(value["record"]))
    why = {item.provider: item.reasons for item in record.cases[0].ineligible}
    assert set(why) == {f"benchbox_{n}" for n in ("denied", "diagnostic", "gone", "narrow", "elsewhere")}
    assert why["benchbox_denied"] == ("KM411 excluded by policy",)
    assert why["benchbox_narrow"][0].startswith("KM407") and why["benchbox_elsewhere"][0].startswith("KM405")
    assert {item.provider for case in record.cases for item in case.times} == {"benchbox_quick", "benchbox_slow"}
    assert box.bench("--exclude", "benchbox_denied") == 0
    text = capsys.readouterr().out
    assert "not run:" in text and "benchbox_gone (prefill, decode): KM404 deprecated" in text


def test_a_kill_switch_keeps_a_variant_from_being_timed(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"name": "wide", "kill_switch": "BENCHBOX_NO_WIDE", "fallback": "serial"}
    box.edit(box.map("quick"), lambda v: v["impl"].update(variants=[wide, {"name": "serial"}]))

    def variants() -> set[str]:
        _, value = told(box, capsys)
        times = [item for case in value["record"]["cases"] for item in case["times"]]
        return {item["variant"] for item in times if item["provider"] == "benchbox_quick"}

    assert variants() == {"wide"}
    monkeypatch.setenv("BENCHBOX_NO_WIDE", "1")
    assert variants() == {"serial"}


def test_other_outputs_and_broken_providers_are_errors_and_not_timed(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    box.add(kernel_map("wrong", 300, "candidate"))
    box.add(kernel_map("broken", 301, "candidate"))
    for name, where in (
        ("raising", "matmul(spec):\n    "),
        ("failing", "matmul(spec):\n    def run(x, weight, y, threads):\n        "),
    ):
        (box.site / f"{name}.py").write_text(f"def {where}raise OSError(spec.op)\n    return run\n")
        box.add(kernel_map(name, 302 + len(where), "candidate"))
    code, value = told(box, capsys)
    assert code == 1
    errors = {d["message"].split()[0]: d["message"] for d in value["diagnostics"] if d["severity"] == "error"}
    assert "at prefill H=24 R=3 W=8, 1 thread (and in 1 more case): outputs differ" in errors["benchbox_wrong"]
    assert "from those of benchbox_slow: y differs in 1 of 24 values" in errors["benchbox_wrong"]
    assert "KM510" in errors["benchbox_broken"]
    assert all("raised OSError: benchbox_matmul" in errors[f"benchbox_{name}"] for name in ("raising", "failing"))
    timed = {item["provider"] for case in value["record"]["cases"] for item in case["times"]}
    assert timed == {"benchbox_quick", "benchbox_slow"}, "the sound ones are timed all the same"


def test_tolerant_groups_may_differ_within_their_tolerance(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    rule = {"kind": "tolerance", "rtol": 1e-5, "atol": 1e-5}
    write(box.maps / "contracts" / f"{GROUP}.json", contract(equivalence=rule))
    box.add(kernel_map("wrong", 300, "candidate"))
    code, value = told(box, capsys)
    assert code == 0 and len(value["record"]["cases"][0]["times"]) == 3


def test_a_circuit_is_timed_once_for_each_group_and_dims(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, value = told(box, capsys, target=str(box.circuit))
    assert code == 0
    cases = value["record"]["cases"]
    assert [(case["op"], case["phase"], case["dims"]["W"]) for case in cases] == [
        ("up", "prefill", 24), ("up", "decode", 24)
    ], "up and down are the same op at the same dims"  # fmt: skip
    assert cases[0]["source"] == "benchbox up layers 0-1" and cases[0]["incumbent"] == "benchbox_slow"
    box.edit(box.circuit, lambda v: v.update(routes=[{"op": "up", "allow": "benchbox_quick"}]))
    _, value = told(box, capsys, "--phase", "decode", target=str(box.circuit))
    assert [case["incumbent"] for case in value["record"]["cases"]] == ["benchbox_quick"], "by the circuit's route"
    code, value = told(box, capsys, "--shape", "W=8", "--op", "up", target=str(box.circuit))
    assert {case["dims"]["W"] for case in value["record"]["cases"]} == {8}
    assert value["record"]["cases"][0]["incumbent"] == "benchbox_quick", "routes hold at other sizes, too"


def test_text_fits_and_is_plain(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert box.bench() == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines()) and "\x1b" not in text
    assert "> benchbox_slow  production 100, serial" in text and "x 1.00" in text and "ISA path" in text
    assert f"wrote {box.record}" in " ".join(text.split()) or "wrote" in text


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--threads", "0"], 2),
        (["--threads", "1,x"], 2),
        (["--tokens", "-1"], 2),
        (["--shape", "H"], 2),
        (["--shape", "H=0"], 2),
        (["--rounds", "0"], 2),
        (["--op", "up"], 2),
        (["--phase", "init"], 2),
    ],
)
def test_wrong_words_are_wrong_use(box: Box, flags: list[str], code: int) -> None:
    assert box.run("bench", GROUP, *flags) == code
    assert not box.record.exists()


@pytest.mark.parametrize(
    ("target", "flags", "said"),
    [
        ("benchbox_fp16", [], "KM580"),
        ("no_such_file.gguf", [], "KM601"),
        (GROUP, ["--shape", "Q=3"], "KM583"),
        (GROUP, ["--shape", "R=3"], "KM583"),
        (GROUP, ["--host", "nobody"], "KM701"),
        (GROUP, ["--host", "neoverse_v2_server"], "KM581"),
        (GROUP, ["--exclude", "benchbox_slow", "--exclude", "benchbox_quick"], "KM580"),
        (GROUP, ["--exclude", "benchbox_sloww"], "KM457"),
        (GROUP, ["--shape", "H=1000000", "--shape", "W=1000000"], "KM585"),
    ],
)
def test_bad_targets_are_errors_that_write_nothing(
    box: Box, capsys: pytest.CaptureFixture[str], target: str, flags: list[str], said: str
) -> None:
    if "neoverse_v2_server" in flags and os.uname().machine == "aarch64":
        pytest.skip("this machine may be such a host")
    capsys.readouterr()
    assert box.run("bench", target, "--rounds", "1", "--output", str(box.record), *flags) == 1
    assert said in capsys.readouterr().err
    assert not box.record.exists()


def test_a_record_that_cannot_be_written_is_an_error(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert box.bench("--output", str(box.root / "none" / "bench.json")) == 1
    assert "KM832" in capsys.readouterr().err


def test_no_room_for_weights_is_an_error(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(box.root / "none"))
    capsys.readouterr()
    assert box.bench() == 1
    assert "KM586" in capsys.readouterr().err


def test_an_interrupt_leaves_nothing(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelmap.bench import measure

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    folder = box.root / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(measure, "_rounds", interrupted)
    assert box.bench() == 130
    assert not list(folder.iterdir()) and not box.record.exists()


def test_an_op_with_state_is_refused_with_the_reason(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    state = [{"name": "memory", "dtype": "fp32", "shape": ["H"], "access": "read_write"}]
    write(box.maps / "contracts" / f"{GROUP}.json", contract(state=state))
    capsys.readouterr()
    assert box.bench() == 1
    assert "KM583" in (text := capsys.readouterr().err) and "state" in text


def test_ops_with_state_are_left_out_of_a_circuit_with_a_note(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    state = [{"name": "memory", "dtype": "fp32", "shape": ["H"], "access": "read_write"}]
    scan = {"op": "benchbox_scan", "equivalence_group": "benchbox_state", "weights": [], "state": state}
    outputs = [{"name": "y", "dtype": "fp32", "shape": ["R", "H"]}]
    dims = {"R": "tokens", "H": "width"}
    write(box.maps / "contracts" / "benchbox_state.json", contract(**scan, outputs=outputs, dims=dims))
    op = {"name": "scan", "op": "benchbox_scan", "equivalence_group": "benchbox_state", "inputs": {"x": "x"},
          "state": {"memory": "memory"}}  # fmt: skip

    def add(value: dict[str, Any]) -> None:
        value["state"] = [{"name": "memory", "dtype": "fp32", "shape": ["H"], "update": "replace"}]
        value["blocks"]["main"]["ops"].append(op)

    box.edit(box.circuit, add)
    code, value = told(box, capsys, target=str(box.circuit))
    assert code == 0 and {case["op"] for case in value["record"]["cases"]} == {"up"}
    assert [(d["code"], d["severity"]) for d in value["diagnostics"]] == [("KM583", "note")]
    capsys.readouterr()
    assert box.bench("--op", "scan", target=str(box.circuit)) == 1
    assert "KM583" in capsys.readouterr().err


def test_a_profile_with_fewer_features_limits_what_is_run(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    from kernelmap.host import probe_host

    host = probe_host().model_copy(update={"name": "bare", "isa": ()})
    write(box.root / "bare.json", host.model_dump(mode="json", by_alias=True, exclude={"schema_ref"}))
    code, value = told(box, capsys, "--host", str(box.root / "bare.json"))
    assert code == 0 and value["record"]["host"]["path"] == "portable" and value["record"]["host"]["isa"] == []


def test_inputs_that_choose_weights_come_in_sets() -> None:
    from kernelmap.bench.small import group_spots
    from kernelmap.bench.stage import INPUT_SETS, inputs_of
    from kernelmap.models.policy import Policy
    from kernelmap.registry import load_registry

    registry = load_registry()
    group = "fp32_fp32_gate_up_ggml_swiglu_fp32_fp32_down_weighted_fp32"
    (spot,) = group_spots(group, registry, Policy(), (), 1)
    sets = inputs_of(spot, 5)
    assert len(sets) == INPUT_SETS and len({item["indices"].tobytes() for item in sets}) == INPUT_SETS
    for item in sets:
        assert item["indices"].shape == (5, spot.dims["K"]) and item["hidden"].shape == (5, spot.dims["H"])
        assert all(len(set(row)) == spot.dims["K"] and max(row) < spot.dims["E"] for row in item["indices"].tolist())
    (plain,) = group_spots("fp32_weight_fp32_internal_fp32_output", registry, Policy(), (), 1)
    assert len(inputs_of(plain, 5)) == 1


def test_isa_paths_are_those_of_certificates() -> None:
    from kernelmap.bench.record import ISA_PATHS, PORTABLE
    from kernelmap.certify.certificates import PATHS

    assert {*ISA_PATHS, PORTABLE} == set(PATHS)
    assert isa_path(()) == "portable" and isa_path(("avx2", "avxvnni")) == "avxvnni"
    assert isa_path(("avx2", "avx512vnni", "avxvnni")) == "avx512vnni"


def test_records_of_unequal_rounds_are_refused(box: Box) -> None:
    assert box.bench() == 0
    value = json.loads(box.record.read_text())
    value["cases"][0]["times"][0]["seconds"].pop()
    with pytest.raises(ValueError, match="different numbers of rounds"):
        BenchRecord.model_validate_json(json.dumps(value))
    assert case_text(read_record(box.record).cases[0]) == "prefill H=24 R=3 W=8, 1 thread"
