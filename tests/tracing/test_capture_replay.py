"""Captured calls replay to the byte; damaged, edited and hostile files are refused with a place."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tracebox import WEIGHTS, Box, world

from kernelmap.cli.main import run
from kernelmap.errors import KernelmapError
from kernelmap.registry import load_registry
from kernelmap.schema_files import schema_path
from kernelmap.tracing.captured import read_capture

DATA = Path(__file__).parent.parent / "data" / "models"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path) as made:
        yield made


def capture(box: Box, *words: str) -> int:
    arguments = ["run", box.model, *box.flags, "--tokens", "3", "--repeat", "1", "--threads", "1", "--format", "json"]
    return run([*arguments, *words, "--capture-dir", str(box.root)])


def replay(capsys: pytest.CaptureFixture[str], box: Box, name: str, *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = run(["replay", str(box.root / name), *box.flags[:2], "--format", "json", *words])
    said = capsys.readouterr()
    assert "KM901" not in said.out and said.err == ""
    return code, json.loads(said.out)


def codes(value: Any) -> list[str]:
    return sorted({item["code"] for item in value["diagnostics"]})


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    """(header, data) of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_a_capture_holds_the_call(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    saved = box.root / "out.npz"
    assert capture(box, "--capture", "sum@1:prefill", "--capture", "mul@2", "--save", str(saved)) == 0
    told = json.loads(capsys.readouterr().out)["captured"]
    names = ["mul.2.decode.safetensors", "mul.2.prefill.safetensors", "sum.1.prefill.safetensors"]
    assert told == [str(box.root / name) for name in names] == sorted(map(str, box.root.glob("*.safetensors")))
    from safetensors.numpy import load_file

    held = load_file(box.root / "sum.1.prefill.safetensors")
    assert set(held) == {"input.x", "state.memory", "output.y", "after.memory"}
    assert held["state.memory"].tolist() == [0, 0, 0, 0] and (held["after.memory"] == held["output.y"][-1]).all()
    held = load_file(box.root / "mul.2.prefill.safetensors")
    assert held["weight.weight"].tobytes() == WEIGHTS["blk.2.mul.weight"].tobytes()
    header, _ = split(box.root / "mul.2.prefill.safetensors")
    facts = json.loads(header["__metadata__"]["kernelmap"])
    jsonschema.Draft202012Validator(json.loads(schema_path("capture").read_text())).validate(facts)
    assert (facts["op"], facts["layer"], facts["phase"], facts["variant"]) == ("mul", 2, "prefill", "wide")
    assert facts["dims"] == {"R": 3, "H": 4} and facts["status"] == 0 and facts["provider"] == "box_mul"


def test_every_provider_of_the_group_replays_it(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture(box, "--capture", "mul@1", "--capture", "sum@0:prefill") == 0
    code, value = replay(capsys, box, "mul.1.prefill.safetensors", "--all")
    rows = {(row["provider"], row["variant"]): row for row in value["replayed"]}
    agree = {name for (name, _), row in rows.items() if row["agrees"]}
    assert code == 1
    assert agree == {"oracle", "box_mul", "box_mul_plain", "box_mul_diagnostic"}
    assert rows["box_mul", "wide"]["agrees"] and rows["box_mul", "serial"]["agrees"]
    skipped = {name: row["skipped"] for (name, _), row in rows.items() if row["skipped"]}
    assert skipped == {
        "box_mul_elsewhere": "host lacks sme2", "box_mul_small": "needs H <= 2", "box_mul_decode": "not for prefill",
    }  # fmt: skip
    difference = rows["box_mul_wrong", "serial"]["differences"][0]
    assert difference["index"] == [1, 2] and difference["found"] == difference["expected"] + 1
    assert rows["box_mul_beyond", "serial"]["faults"] == ["wrote outside y"]
    assert rows["box_mul_raises", "serial"]["faults"] == ["raises ZeroDivisionError: no such luck"]
    code, value = replay(capsys, box, "sum.0.prefill.safetensors", "--all")
    agree = {row["provider"]: row["agrees"] for row in value["replayed"]}
    assert agree == {"oracle": True, "box_sum": True, "box_sum_near": True, "box_sum_forgets": False}


def test_one_provider_of_choice(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture(box, "--capture", "mul@1:prefill") == 0
    name = "mul.1.prefill.safetensors"
    code, value = replay(capsys, box, name)
    assert code == 0 and {row["provider"] for row in value["replayed"]} == {"box_mul"}
    assert replay(capsys, box, name, "--provider", "oracle")[0] == 0
    assert replay(capsys, box, name, "--provider", "box_mul_wrong")[0] == 1
    for words, code_wanted in (("box_sum", "KM459"), ("box_mull", "KM457"), ("box_mul_elsewhere", "KM576")):
        code, value = replay(capsys, box, name, "--provider", words)
        assert code == 1 and codes(value) == [code_wanted]
    assert run(["replay", str(box.root / name), "--provider", "oracle", "--all"]) == 2


def test_a_killed_variant_is_skipped(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert capture(box, "--capture", "mul@1:prefill") == 0
    monkeypatch.setenv("BOX_NO_WIDE", "1")
    _, value = replay(capsys, box, "mul.1.prefill.safetensors")
    assert [row["skipped"] for row in value["replayed"]] == ["BOX_NO_WIDE is set", ""]


def test_a_refused_call_is_captured_with_its_status(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.zeros((3, 4), np.float32)
    x[1, 3] = np.nan
    recording = box.root / "in.npz"
    np.savez(recording, **{"prefill/x": x})
    assert capture(box, "--capture", "begin:prefill", "--inputs", str(recording)) == 1
    assert codes(json.loads(capsys.readouterr().out)) == ["KM530"]
    header, _ = split(box.root / "begin.prefill.safetensors")
    assert json.loads(header["__metadata__"]["kernelmap"])["status"] == 2
    assert set(header) == {"__metadata__", "input.x", "weight.weight"}
    code, value = replay(capsys, box, "begin.prefill.safetensors", "--all")
    rows = {row["provider"]: row for row in value["replayed"] if not row["skipped"]}
    assert code == 1 and rows["oracle"]["agrees"] and rows["box_mul"]["agrees"] and rows["box_mul_refuses"]["agrees"]
    assert rows["box_mul_wrong"]["faults"] == ["status 0, and the recorded one is 2"]


def test_a_repeat_replaces_and_never_called_is_told(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture(box, "--capture", "mul@1:prefill") == 0
    first = (box.root / "mul.1.prefill.safetensors").read_bytes()
    assert capture(box, "--capture", "mul@1:prefill") == 0
    assert (box.root / "mul.1.prefill.safetensors").read_bytes() == first
    capsys.readouterr()
    assert capture(box, "--capture", "mul@1:decode", "--phase", "prefill") == 1
    assert codes(json.loads(capsys.readouterr().out)) == ["KM577"]
    assert not list(box.root.glob("*.tmp"))


@pytest.mark.parametrize(
    ("word", "code"),
    [("mul", "KM458"), ("mul@7", "KM458"), ("begin@0", "KM458"), ("mul@1:init", "KM458"), ("mull@1", "KM458"),
     ("mul@x", "KM751"), ("mul:train", "KM751"), ("../mul@1", "KM751")],
)  # fmt: skip
def test_words_that_name_no_call(box: Box, capsys: pytest.CaptureFixture[str], word: str, code: str) -> None:
    assert capture(box, "--capture", word) == 1
    assert codes(json.loads(capsys.readouterr().out)) == [code]


def test_a_folder_that_is_none(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", box.model, *box.flags, "--capture", "mul@1", "--capture-dir", str(box.root / "none")]
    assert run(arguments) == 1 and "error[KM572]" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing_behind(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    assert capture(box, "--capture", "mul@1") == 1
    assert codes(json.loads(capsys.readouterr().out)) == ["KM572"]
    assert not list(box.root.glob("*.tmp")) and not list(box.root.glob("*.safetensors"))


# Damaged, edited and hostile files


def facts_edit(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def edit(header: dict[str, Any]) -> None:
        facts = json.loads(header["__metadata__"]["kernelmap"])
        for name, value in changes.items():
            if value is None:
                del facts[name]
            else:
                facts[name] = value
        header["__metadata__"]["kernelmap"] = json.dumps(facts)

    return edit


def rename(header: dict[str, Any]) -> None:
    header["input.z"] = header.pop("input.x")


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no metadata": (lambda h: h.pop("__metadata__"), "KM573"),
    "other metadata": (lambda h: h.update(__metadata__={"format": "pt"}), "KM573"),
    "no JSON": (lambda h: h["__metadata__"].update(kernelmap="{"), "KM008"),
    "a field missing": (facts_edit(group=None), "KM101"),
    "an unknown field": (facts_edit(more=1), "KM102"),
    "a wrong type": (facts_edit(threads="two"), "KM103"),
    "a bad id": (facts_edit(provider="../../x"), "KM105"),
    "another contract": (facts_edit(contract="sha256:0"), "KM575"),
    "no such group": (facts_edit(group="box_mull_fp32"), "KM575"),
    "a dim missing": (facts_edit(dims={"R": 3}), "KM574"),
    "a dim too many": (facts_edit(dims={"R": 3, "H": 4, "Z": 1}), "KM574"),
    "a huge dim": (facts_edit(dims={"R": 2**40, "H": 4}), "KM574"),
    "a negative dim": (facts_edit(dims={"R": -3, "H": 4}), "KM574"),
    "another dim": (facts_edit(dims={"R": 4, "H": 4}), "KM574"),
    "a param too many": (facts_edit(params={"scale": 1.0}), "KM574"),
    "another dtype": (facts_edit(dtypes={"x": "fp16", "weight": "fp32", "y": "fp32"}), "KM574"),
    "a dtype missing": (facts_edit(dtypes={"x": "fp32", "weight": "fp32"}), "KM574"),
    "a port too many": (facts_edit(dtypes={"x": "fp32", "weight": "fp32", "y": "fp32", "z": "fp32"}), "KM574"),
    "a status with outputs": (facts_edit(status=1), "KM574"),
    "a tensor renamed": (rename, "KM574"),
    "another tensor dtype": (lambda h: h["input.x"].update(dtype="I32"), "KM574"),
    "another tensor shape": (lambda h: h["input.x"].update(shape=[4, 3]), "KM574"),
    "offsets that overlap": (lambda h: h["input.x"].update(data_offsets=h["output.y"]["data_offsets"]), "KM6"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_a_place(box: Box, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert capture(box, "--capture", "mul@1:prefill") == 0
    path = box.root / "mul.1.prefill.safetensors"
    header, data = split(path)
    change, expected = HOSTILE[name]
    change(header)
    join(path, header, data)
    code, value = replay(capsys, box, path.name)
    assert code == 1 and all(item["code"].startswith(expected) for item in value["diagnostics"]), value
    assert all(item["file"].startswith(str(path)) for item in value["diagnostics"])


def test_weights_that_are_not_finite_are_refused(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture(box, "--capture", "mul@1:prefill") == 0
    path = box.root / "mul.1.prefill.safetensors"
    header, data = split(path)
    start = header["weight.weight"]["data_offsets"][0]
    join(path, header, data[:start] + struct.pack("<f", float("nan")) + data[start + 4 :])
    code, value = replay(capsys, box, path.name)
    assert code == 1 and codes(value) == ["KM511"]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, -1])
def test_truncated_files_are_refused(box: Box, capsys: pytest.CaptureFixture[str], size: int) -> None:
    assert capture(box, "--capture", "mul@1:prefill") == 0
    path = box.root / "mul.1.prefill.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    code, value = replay(capsys, box, path.name)
    assert code == 1 and value["diagnostics"] and all(item["file"] == str(path) for item in value["diagnostics"])


@pytest.mark.parametrize("name", ["qwen35moe.gguf", "qwen35moe.acts.npz", "none"])
def test_other_files_are_named_as_what_they_are(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run(["replay", str(DATA / name)]) == 1
    err = capsys.readouterr().err
    assert "KM601" in err or "KM602" in err or "KM573" in err


def test_any_flipped_byte_is_refused_or_read(box: Box) -> None:
    """Whatever a byte of the header becomes: a placed refusal, or a capture that fits its contract."""
    assert capture(box, "--capture", "mul@1:prefill") == 0
    path = box.root / "mul.1.prefill.safetensors"
    raw, registry = path.read_bytes(), load_registry((box.maps,))

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.integers(0, len(raw) - 1), st.integers(1, 255))
    def flipped(at: int, by: int) -> None:
        path.write_bytes(raw[:at] + bytes([raw[at] ^ by]) + raw[at + 1 :])
        try:
            call = read_capture(path, registry)
        except KernelmapError as error:
            assert all(item.place is not None for item in error.diagnostics)
        else:
            assert call.recorded["y"].shape == (call.facts.dims["R"], 4)

    flipped()


def test_text_fits_eighty_columns(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture(box, "--capture", "mul@1:prefill") == 0
    capsys.readouterr()
    assert run(["replay", str(box.root / "mul.1.prefill.safetensors"), *box.flags[:2], "--all"]) == 1
    out = capsys.readouterr().out
    assert "DEPARTS  box_mul_wrong serial" in out and "agrees   oracle" in out and max(map(len, out.splitlines())) <= 80
