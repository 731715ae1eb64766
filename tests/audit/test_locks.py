"""Lock files: stable, whole or not at all, without holes; and `resolve --locked`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from sandbox import Box, world

from kernelmap.cli.main import run
from kernelmap.errors import KernelmapError
from kernelmap.lock import read_lock, write_lock
from kernelmap.models.lock import Lock
from kernelmap.schema_files import schema_text


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path) as made:
        yield made


def lock(box: Box, *flags: str, name: str = "kernels.lock.json") -> Path:
    path = box.root / name
    hosts = [] if "--host" in flags else ["--host", str(box.host)]
    assert run(["lock", str(box.circuit), *box.flags, *hosts, *flags, "--output", str(path)]) == 0
    return path


def resolve(box: Box, path: Path, *flags: str) -> int:
    return run(["resolve", str(box.circuit), *box.flags, "--host", str(box.host), "--locked", str(path), *flags])


def test_a_lock_holds_choices_and_digests(box: Box) -> None:
    found = read_lock(lock(box))
    assert list(found.hosts) == ["toybox_host"] and found.hosts["toybox_host"].isa == {"avx2": True}
    assert set(found.maps) == {"toybox_fast", "toybox_plain", "toybox_risky"}
    for hosts in found.circuits["toybox"].choices.values():
        for choice in hosts["toybox_host"]:
            assert (choice.provider, choice.variants, choice.layers) == ("toybox_fast", ("wide", "serial"), "0-2")
            assert choice.rejected["toybox_risky"] == ("KM401 no route allows it",)
            assert choice.rejected["toybox_plain"] == ("KM413 outranked by toybox_fast",)
    assert {len(item.sources) for item in found.maps.values()} == {len("sha256:") + 64}
    assert len({item.sources for item in found.maps.values()}) == 3


def test_a_lock_is_the_same_bytes_whatever_the_hash_seed(box: Box) -> None:
    texts = set()
    for seed in ("0", "1", "77"):
        path = box.root / f"seed{seed}.json"
        command = [sys.executable, "-m", "kernelmap", "lock", "--host", "avx2_2core", "--host", "neoverse_v2_server"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([*command, "--output", str(path)], check=True, env=environment, capture_output=True)
        texts.add(path.read_text(encoding="utf-8"))
    assert len(texts) == 1
    text = texts.pop()
    value = json.loads(text)
    assert text == json.dumps(value, indent=2, sort_keys=True) + "\n"
    jsonschema.validate(value, json.loads(schema_text("lock")))


def test_the_order_of_hosts_makes_no_difference(box: Box) -> None:
    one = lock(box, "--host", "avx2_2core", "--host", "avx_vnni_client", name="one.json")
    two = lock(box, "--host", "avx_vnni_client", "--host", "avx2_2core", name="two.json")
    assert one.read_bytes() == two.read_bytes()


def test_a_lock_with_a_hole_is_not_written(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = lock(box)
    before = path.read_bytes()
    deny = ["--exclude", "toybox_fast", "--exclude", "toybox_plain"]
    flags = [*box.flags, "--host", str(box.host), *deny, "--output", str(path)]
    assert run(["lock", str(box.circuit), *flags]) == 1
    assert "KM450" in capsys.readouterr().err
    assert path.read_bytes() == before and sorted(p.name for p in box.root.glob("*.tmp")) == []


def test_a_lock_file_with_a_hole_is_refused(box: Box) -> None:
    path = lock(box)
    box.edit(path, lambda v: v["circuits"]["toybox"]["choices"]["decode"]["toybox_host"][1].pop("provider"))
    with pytest.raises(KernelmapError, match=r"KM806.*toybox: op1 decode on toybox_host"):
        read_lock(path)
    holed = Lock.model_validate_json(path.read_text(encoding="utf-8"))
    with pytest.raises(KernelmapError, match="KM806"):
        write_lock(holed, box.root / "other.json")
    assert not (box.root / "other.json").exists()


def test_a_lock_that_cannot_be_written_says_so(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(box.root / "no" / "where.json")
    assert run(["lock", str(box.circuit), *box.flags, "--host", str(box.host), "--output", missing]) == 1
    assert "KM832" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--check"], ["--output", "a", "--check", "--lock", "b"], ["--lock", "b"]])
def test_wrong_use(words: list[str]) -> None:
    assert run(["lock", *words]) == 2


def test_resolve_locked_takes_the_policy_of_the_lock(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = lock(box, "--route", "op0=toybox_risky")
    capsys.readouterr()
    assert resolve(box, path, "--format", "json") == 0
    plan = json.loads(capsys.readouterr().out)
    chosen = {(item["name"], item["phase"]): item["provider"] for item in plan["decisions"]}
    assert chosen["op0", "prefill"] == "toybox_risky" and chosen["op1", "prefill"] == "toybox_fast"


def test_resolve_locked_refuses_drift(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = lock(box)
    box.edit(box.map("plain"), lambda value: value["selection"].update(priority=250))
    assert resolve(box, path) == 1
    said = capsys.readouterr()
    assert "KM805" in said.err and "toybox_plain" in said.err and "plan sha256" not in said.out


def test_resolve_locked_refuses_what_the_lock_does_not_hold(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = lock(box)
    assert run(["resolve", str(box.circuit), *box.flags, "--host", "avx2_2core", "--locked", str(path)]) == 1
    assert "KM830" in capsys.readouterr().err
    assert run(["resolve", "qwen35_moe", "--host", str(box.host), "--locked", str(path)]) == 1
    assert "KM830" in capsys.readouterr().err


def test_a_deny_is_honoured_beside_a_lock(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = lock(box)
    capsys.readouterr()
    assert resolve(box, path, "--exclude", "toybox_fast") == 1
    said = capsys.readouterr()
    assert "KM805" in said.err and "KM818" in said.err and said.out == ""
    rule = box.root / "policy.json"
    rule.write_text('{"schema_version": 1, "exclude": ["toybox_fast", "toybox_plain"]}')
    assert resolve(box, path, "--policy", str(rule)) == 1
    assert "KM450" in capsys.readouterr().err


def test_a_kill_switch_is_honoured_beside_a_lock(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock(box)
    monkeypatch.setenv("TOYBOX_NO_WIDE", "1")
    assert resolve(box, path) == 1
    assert "KM808" in capsys.readouterr().err


def test_a_locked_evidence_policy_is_not_loosened(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = lock(box, "--evidence", "warn")
    assert resolve(box, path, "--evidence", "ignore") == 0
    assert resolve(box, path, "--evidence", "require") == 1
    assert "KM410" in capsys.readouterr().err


def test_pins_against_the_lock_are_refused(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = lock(box, "--pin", "op0=toybox_plain")
    assert resolve(box, path) == 0
    assert resolve(box, path, "--pin", "op0=toybox_fast") == 1
    assert "KM751" in capsys.readouterr().err


def test_a_model_file_is_locked_with_its_storage(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(__file__).parents[1] / "data" / "models" / "qwen35moe.gguf"
    path = box.root / "model.lock.json"
    assert run(["lock", "--model", str(model), "--host", "avx2_2core", "--output", str(path)]) == 0
    found = read_lock(path).circuits["qwen35_moe"]
    assert (found.model, found.target) == (str(model), "qwen35_moe")
    assert run(["lock", "--check", "--lock", str(path)]) == 0
    capsys.readouterr()
    assert run(["lock", "--check", "--lock", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"diagnostics": []}, "nothing but JSON"
    profile = box.root / "model.json"
    assert run(["inventory", str(model), "--format", "json"]) == 0
    assert run(["resolve", str(model), "--host", "avx2_2core", "--locked", str(path)]) == 0
    assert run(["resolve", "qwen35_moe", "--host", "avx2_2core", "--locked", str(path)]) == 1
    assert "KM815" in capsys.readouterr().err
    assert not profile.exists()


@pytest.mark.parametrize("layers", ["..", "0-", "3-1", "0,0", "1,0", "0-99999999999", "0-99999,0-99999", " 1", "1\n"])
def test_layers_of_a_lock_are_ranges(box: Box, capsys: pytest.CaptureFixture[str], layers: str) -> None:
    """Ten billion layers kept a diff busy until memory ran out."""
    path = lock(box)
    value = json.loads(path.read_text(encoding="utf-8"))
    value["circuits"]["toybox"]["choices"]["prefill"]["toybox_host"][0]["layers"] = layers
    path.write_text(json.dumps(value), encoding="utf-8")
    capsys.readouterr()
    assert run(["diff", str(path), str(path), *box.flags]) == 1
    err = capsys.readouterr().err
    assert "layers" in err and "KM901" not in err
