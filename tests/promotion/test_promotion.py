"""Promotion: refused until certificate and benchmark hold, then one word of the map changes; and the way back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchbox import GROUP, Box, forget, kernel_map, world

from kernelmap import promotion as promotions
from kernelmap.errors import KernelmapError
from kernelmap.registry import load_registry
from kernelmap.schema_files import schema_path
from kernelmap.toolchain import toolchain, toolchain_gap
from kernelmap.vocabulary import Status

Json = dict[str, Any]
QUICK = "benchbox_quick"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world in which the candidate is certified and timed; tests take copies of it."""
    root = tmp_path_factory.mktemp("prepared") / "world"
    with world(root) as box:
        assert box.run("certify", QUICK, "--into", str(box.maps / "evidence")) == 0
        assert box.bench() == 0
    return root


@pytest.fixture
def box(prepared: Path, tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path / "world") as made:
        for part in ("kernel_maps/evidence", "bench.json"):
            path = made.root / part
            if path.is_dir():
                shutil.rmtree(path)
                shutil.copytree(prepared / part, path)
            else:
                shutil.copy(prepared / part, path)
        yield made


def promote(box: Box, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, Json]:
    capsys.readouterr()
    code = box.run("promote", QUICK, "--bench", str(box.record), "--format", "json", *flags)
    return code, json.loads(capsys.readouterr().out)


def codes(value: Json) -> set[str]:
    return {item["code"] for item in value["diagnostics"] if item["severity"] == "error"}


def edit_times(box: Box, change: Callable[[list[float], list[float]], object]) -> None:
    """Changes the rounds of the candidate, given those of the incumbent too, in every case."""

    def edit(value: Json) -> None:
        for case in value["cases"]:
            times = {item["provider"]: item["seconds"] for item in case["times"]}
            change(times[QUICK], times["benchbox_slow"])

    box.edit(box.record, edit)


def selected(box: Box, capsys: pytest.CaptureFixture[str]) -> set[str]:
    capsys.readouterr()
    assert box.run("resolve", str(box.circuit), "--format", "json") == 0
    return {item["provider"] for item in json.loads(capsys.readouterr().out)["decisions"]}


def test_a_promotion_changes_one_word_and_what_resolves(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    odd = box.map("quick").read_text().replace('"priority": 200', '"priority" :\t200').replace("\n", "\r\n")
    box.map("quick").write_bytes(odd.encode())
    assert selected(box, capsys) == {"benchbox_slow"}
    before = box.root / "before"
    shutil.copytree(box.maps, before)
    code, value = promote(box, capsys, "--yes")
    assert code == 0 and value["allowed"] and (value["from"], value["to"]) == ("candidate", "production")
    assert '-    "status": "candidate",' in value["diff"] and '+    "status": "production",' in value["diff"]
    assert box.map("quick").read_bytes() == odd.replace('"candidate"', '"production"').encode()
    assert value["written"] == [str(box.map("quick")), str(box.maps / "benchmarks" / f"{QUICK}.json")]
    kept = json.loads(Path(value["written"][1]).read_text())
    assert kept["cases"] == json.loads(box.record.read_text())["cases"]
    assert selected(box, capsys) == {QUICK}
    assert box.run("certify", "--check", QUICK) == 0, "the certificate covers the provider as before"
    forget()
    from kernelmap.cli.main import run

    capsys.readouterr()
    assert run(["diff", str(before), str(box.maps), "--circuits", str(box.circuit.parent), "--format", "json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    within = {(c["op"], c["phase"]) for c in changes if c["kind"] == "provider changed within the group"}
    assert within == {(op, phase) for op in ("up", "down") for phase in ("prefill", "decode")}
    assert not list(box.root.rglob("*.tmp"))


def test_a_dry_run_and_a_no_write_nothing(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    text = box.map("quick").read_text()
    code, value = promote(box, capsys, "--dry-run")
    assert code == 0 and value["allowed"] and value["written"] == []
    code, value = promote(box, capsys)
    assert code == 1 and codes(value) == {"KM597"}, "json never asks"
    assert box.run("promote", QUICK, "--bench", str(box.record)) == 1, "there is no terminal to ask"
    out, err = capsys.readouterr()
    assert '+    "status": "production"' in out and "KM597" in err, "the diff is shown first"
    assert box.map("quick").read_text() == text and not (box.maps / "benchmarks").exists()


def test_everything_that_lacks_is_said_at_once(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(box.maps / "evidence")
    code, value = promote(box, capsys, "--yes")
    assert code == 1 and codes(value) == {"KM591"} and "no evidence" in value["diagnostics"][0]["message"]
    assert value["diagnostics"][0]["file"] == str(box.map("quick")) and value["diagnostics"][0]["line"]
    capsys.readouterr()
    assert box.run("promote", QUICK, "--format", "json", "--yes") == 1
    assert codes(json.loads(capsys.readouterr().out)) == {"KM591", "KM592"}
    assert '"candidate"' in box.map("quick").read_text()


def test_a_certificate_stale_by_source_warns_in_check_and_stops_audit_strict_and_promote(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    assert promote(box, capsys, "--yes")[0] == 0
    audit = ["audit", str(box.circuit), "--hosts", "avx2_2core,avx512_vnni_server"]
    slow = json.loads((box.maps / "evidence" / f"{QUICK}.json").read_text())
    assert box.run("certify", "benchbox_slow", "--into", str(box.maps / "evidence")) == 0

    def states() -> tuple[int, list[str], int, list[str], int]:
        capsys.readouterr()
        check = box.run("check", "--format", "json")
        stale = [d for d in json.loads(capsys.readouterr().out)["diagnostics"] if d["code"] == "KM255"]
        plain = box.run(*audit, "--format", "json")
        found = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["code"] == "KM848"]
        found = [f for f in found if "changed" in f["message"]]
        box.run(*audit, "--strict", "--format", "json")
        strict = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["code"] == "KM848"]
        errors = sum(f["severity"] == "error" and "source changed" in f["message"] for f in strict)
        return check, [d["severity"] for d in stale], plain, [f["severity"] for f in found], errors

    assert states() == (0, [], 0, [], 0)
    (box.site / "product.py").write_text((box.site / "product.py").read_text() + "\n# edited\n")
    assert states() == (0, ["warning"] * 2, 0, ["warning"] * 2, 2)
    assert box.run(*audit, "--strict") == 1
    box.edit(box.map("quick"), lambda v: v["selection"].update(status="candidate"))
    code, value = promote(box, capsys, "--yes")
    assert code == 1 and codes(value) == {"KM591", "KM593"}
    assert "the source changed" in str(value["diagnostics"]) and slow["provider"] == QUICK


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.update(contract_digest="sha256:0"), "the contract changed"),
        (lambda v: v.update(map_digest="sha256:0"), "the map changed"),
        (lambda v: v.update(source_digest="sha256:0"), "the source changed"),
        (lambda v: v.update(result="fail"), "says fail"),
        (lambda v: v["toolchain"].update(numpy="0.1"), "numpy 0.1 then"),
        (lambda v: v.update(isa_paths=["sse9"]), "ran on sse9"),
    ],
)
def test_each_way_in_which_a_certificate_does_not_hold(
    box: Box, capsys: pytest.CaptureFixture[str], change: Callable[[Json], object], said: str
) -> None:
    box.edit(box.maps / "evidence" / f"{QUICK}.json", change)
    code, value = promote(box, capsys, "--yes")
    assert code == 1 and codes(value) == {"KM591"} and said in value["diagnostics"][0]["message"]


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (lambda v: v["cases"].pop(), "KM592", "does not time benchbox_quick in decode"),
        (lambda v: v["cases"].clear(), "KM592", "in prefill"),
        (lambda v: v["contracts"].update({GROUP: "sha256:0"}), "KM593", "the contract changed"),
        (lambda v: v["providers"][QUICK].update(map_digest="x"), "KM593", f"the map of {QUICK} changed"),
        (lambda v: v["providers"]["benchbox_slow"].update(source_digest="x"), "KM593", "source of benchbox_slow"),
        (lambda v: v["toolchain"].update(python="2.7"), "KM593", "python 2.7 then"),
        (lambda v: v["cases"][0].update(incumbent="benchbox_gone"), "KM592", "does not time benchbox_gone"),
        (lambda v: v["cases"][0].update(refused={QUICK: "outputs differ"}), "KM582", "outputs differ"),
    ],
)
def test_each_way_in_which_a_benchmark_does_not_hold(
    box: Box, capsys: pytest.CaptureFixture[str], change: Callable[[Json], object], code: str, said: str
) -> None:
    box.edit(box.record, change)
    status, value = promote(box, capsys, "--yes")
    assert status == 1 and codes(value) == {code} and said in str(value["diagnostics"])
    assert '"candidate"' in box.map("quick").read_text()


def test_a_loss_beyond_noise_forbids_a_promotion(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    edit_times(box, lambda mine, base: mine.__setitem__(slice(None), [1.5 * x for x in base]))
    status, value = promote(box, capsys, "--yes")
    assert status == 1 and codes(value) == {"KM594"} and len(value["diagnostics"]) == 2
    assert "1.50 [1.50, 1.50] times as long as benchbox_slow at prefill" in value["diagnostics"][0]["message"]


def test_a_loss_within_noise_and_floor_is_none(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    edit_times(box, lambda mine, base: mine.__setitem__(slice(None), [1.015 * x for x in base]))
    assert promote(box, capsys, "--dry-run")[0] == 0


def test_noise_and_few_rounds_prove_nothing(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    factors = (0.5, 2.0, 0.7, 1.0, 1.3, 0.9, 1.1)
    edit_times(box, lambda m, b: m.__setitem__(slice(None), [f * x for f, x in zip(factors, b, strict=True)]))
    status, value = promote(box, capsys, "--yes")
    assert status == 1 and codes(value) == {"KM595"} and "noise" in value["diagnostics"][0]["message"]
    edit_times(box, lambda m, b: (m.__setitem__(slice(None), [x / 9 for x in b[:6]]), b.pop()))
    status, value = promote(box, capsys, "--yes")
    assert status == 1 and codes(value) == {"KM595"} and "6 rounds" in value["diagnostics"][0]["message"]


def test_a_provider_that_came_since_must_be_measured_against(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.add(kernel_map("newer", 150, impl=kernel_map("slow", 1)["impl"]))
    status, value = promote(box, capsys, "--yes")
    assert status == 1 and codes(value) == {"KM592"} and "does not time benchbox_newer" in str(value["diagnostics"])
    box.add(kernel_map("newer", 150, impl=kernel_map("slow", 1)["impl"], requires={"isa": ["sve2", "avx512f"]}))
    assert promote(box, capsys, "--dry-run")[0] == 0, "it is not eligible on the host of the record"


def test_only_candidates_are_promoted(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    for status in ("production", "diagnostic", "deprecated"):
        box.edit(box.map("quick"), lambda v, status=status: v["selection"].update(status=status))
        code, value = promote(box, capsys, "--yes")
        assert code == 1 and codes(value) == {"KM590"} and value["diff"] == ""
    capsys.readouterr()
    assert box.run("promote", "benchbox_quack", "--yes") == 1
    err = capsys.readouterr().err
    assert "KM457" in err and QUICK in err


def test_a_rank_below_production_is_told(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.edit(box.map("slow"), lambda v: v["selection"].update(priority=300))
    box.edit(box.record, lambda v: v["providers"]["benchbox_slow"].update(map_digest=_digest(box, "benchbox_slow")))
    code, value = promote(box, capsys, "--dry-run")
    assert code == 0 and {d["code"] for d in value["diagnostics"]} == {"KM251"}


def _digest(box: Box, name: str) -> str:
    forget()
    return load_registry((box.maps,)).maps[name].proved_digest


def test_a_caveat_about_being_a_candidate_goes(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.edit(box.map("quick"), lambda v: v.update(caveats=["candidate: opt-in routes only", "small shapes"]))
    assert promote(box, capsys, "--yes")[0] == 0, "caveats are prose: the certificate holds"
    assert json.loads(box.map("quick").read_text())["caveats"] == ["small shapes"]


def test_a_map_that_cannot_be_written_leaves_no_record(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    change = promotions.promotion(QUICK, load_registry((box.maps,)), box.record)
    assert not change.lacks
    real = promotions.write_whole

    def refuses_maps(text: str, path: Path) -> None:
        if path == box.map("quick").resolve():
            raise KeyboardInterrupt
        real(text, path)

    monkeypatch.setattr(promotions, "write_whole", refuses_maps)
    with pytest.raises(KeyboardInterrupt):
        promotions.apply(change)
    assert not (box.maps / "benchmarks" / f"{QUICK}.json").exists()
    (box.maps / "benchmarks" / f"{QUICK}.json").write_text("before\n")
    with pytest.raises(KeyboardInterrupt):
        promotions.apply(change)
    assert (box.maps / "benchmarks" / f"{QUICK}.json").read_text() == "before\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_an_error(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.maps.chmod(0o555)
    try:
        code, value = promote(box, capsys, "--yes")
    finally:
        box.maps.chmod(0o755)
    assert code == 1 and codes(value) == {"KM598"}


def test_a_folder_that_cannot_be_made_is_an_error(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    (box.maps / "benchmarks").write_text("a file\n")
    capsys.readouterr()
    assert box.run("promote", QUICK, "--bench", str(box.record), "--yes") == 1
    assert "KM598" in capsys.readouterr().err and '"candidate"' in box.map("quick").read_text()


def test_a_shipped_record_names_its_schema_first(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotions, "shipped_maps", lambda: box.maps)
    _, value = promote(box, capsys, "--yes")
    kept = Path(value["written"][1])
    name, schema = next(iter(json.loads(kept.read_text()).items()))
    assert name == "$schema" and (kept.parent / schema).resolve() == schema_path("bench").resolve()
    assert box.run("check", str(kept)) == 0


def test_the_kept_record_serves_the_next_time(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert promote(box, capsys, "--yes")[0] == 0
    assert box.run("demote", QUICK, "--reason", "second thoughts", "--yes") == 0
    capsys.readouterr()
    assert box.run("promote", QUICK, "--yes", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["allowed"]


def test_a_demotion_says_why_and_changes_what_resolves(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert promote(box, capsys, "--yes")[0] == 0
    assert selected(box, capsys) == {QUICK}
    assert box.run("demote", QUICK, "--reason", " slower on\nclients ", "--yes") == 0
    out = capsys.readouterr().out
    assert '+    "status": "candidate",' in out and "production -> candidate" in out
    value = json.loads(box.map("quick").read_text())
    assert value["selection"]["status"] == "candidate" and len(value["caveats"]) == 1
    assert value["caveats"][0].startswith("demoted from production on ") and "slower on clients" in value["caveats"][0]
    assert selected(box, capsys) == {"benchbox_slow"}


def test_a_demotion_that_leaves_a_hole_is_warned_of(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    arguments = ["demote", "benchbox_slow", "--reason", "x", "--to", "deprecated", "--yes", "--format", "json"]
    assert box.run(*arguments) == 0
    value = json.loads(capsys.readouterr().out)
    assert [(d["code"], d["severity"]) for d in value["diagnostics"]] == [("KM252", "warning")] * 2
    assert json.loads(box.map("slow").read_text())["selection"]["status"] == "deprecated"
    assert box.run(*arguments) == 1, "no step down"
    assert codes(json.loads(capsys.readouterr().out)) == {"KM590"}


@pytest.mark.parametrize(
    "flags", [["--reason", " "], ["--reason", "x", "--to", "production"], [], ["--reason", "x" * 1501]]
)
def test_wrong_words_of_a_demotion(box: Box, flags: list[str]) -> None:
    assert box.run("demote", "benchbox_slow", "--yes", *flags) == 2
    assert '"production"' in box.map("slow").read_text()


def test_an_unreadable_record_is_a_placed_error(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.record.write_text(box.record.read_text().replace('"threads": 1', '"threads": "one"', 1))
    capsys.readouterr()
    assert box.run("promote", QUICK, "--bench", str(box.record), "--yes") == 1
    err = capsys.readouterr().err
    assert "KM103" in err and f"{box.record}:" in "".join(err.split())
    assert box.run("promote", QUICK, "--bench", str(box.root / "none.json"), "--yes") == 1
    assert "KM001" in capsys.readouterr().err
    with pytest.raises(KernelmapError):
        promotions.promotion("nobody", load_registry())


def test_toolchains_differ_in_what_a_backend_uses() -> None:
    now = toolchain()
    assert {"python", "numpy", "numba", "llvmlite"} <= set(now)
    assert toolchain_gap("numba", now, now) == "" == toolchain_gap("numpy", {**now, "numba": "0"}, now)
    assert toolchain_gap("numba", {**now, "numba": "0"}, now) == f"numba 0 then, {now['numba']} now"
    assert "torch" in toolchain_gap("torch", {**now, "torch": "0"}, now) and not toolchain_gap(
        "numba", {**now, "torch": "0"}, now
    )


def test_a_benchmark_under_a_kill_switch_does_not_hold(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """The incumbent ran without its best variant: nothing is proved about what is selected."""
    wide = {"name": "wide", "shape_constraints": {"R_min": 2}, "fallback": "serial", "kill_switch": "BOX_NO_WIDE"}
    box.edit(box.map("slow"), lambda v: v["impl"].update(variants=[wide, {"name": "serial"}]))
    box.edit(box.record, lambda v: v["policy"].update(kill_switches=["BOX_NO_WIDE", "ANOTHER_SWITCH"]))
    code, value = promote(box, capsys, "--yes")
    said = [item["message"] for item in value["diagnostics"]]
    assert code == 1 and any("BOX_NO_WIDE kept benchbox_slow from a variant" in text for text in said)
    assert not any("ANOTHER_SWITCH" in text for text in said)


@pytest.mark.parametrize("word", ["promote", "demote"])
def test_what_was_written_meanwhile_is_not_overwritten(box: Box, word: str) -> None:
    forget()
    registry = load_registry((box.maps,))
    change = (
        promotions.promotion(QUICK, registry, box.record)
        if word == "promote"
        else promotions.demotion("benchbox_slow", registry, Status.DIAGNOSTIC, "why", "2026-01-01")
    )
    path = Path(change.before.name)
    box.edit(path, lambda v: v.update(summary="edited while the question stood open"))
    text = path.read_text()
    with pytest.raises(KernelmapError) as caught:
        promotions.apply(change)
    assert caught.value.diagnostics[0].code == "KM599"
    assert path.read_text() == text and not (box.maps / "benchmarks").exists()


@pytest.mark.parametrize("reason", ["\x1b[31m", "\x9b", "\u202ex", "a\udcff"])
def test_a_reason_has_no_control_characters(box: Box, capsys: pytest.CaptureFixture[str], reason: str) -> None:
    before = box.map("slow").read_text()
    capsys.readouterr()
    assert box.run("demote", "benchbox_slow", "--reason", reason, "--yes") == 2
    assert "--reason" in capsys.readouterr().err and box.map("slow").read_text() == before


def test_a_record_of_a_narrower_host_does_not_hide_what_this_machine_would_lose(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider in production that this machine can run, and the record's host could not, has to be timed too."""
    impl = {"backend": "numpy", "function": "benchbox.slow:matmul", "variants": [{"name": "serial"}]}
    box.add(kernel_map("slow2", 150, requires={"isa": ["avx2"]}, impl=impl))
    box.edit(box.record, lambda value: value["host"].update(isa=[]))
    machine = promotions.probe_host()
    for isa, lacking in ((("avx2",), True), ((), False)):
        monkeypatch.setattr(promotions, "probe_host", lambda isa=isa: machine.model_copy(update={"isa": isa}))
        code, value = promote(box, capsys, "--dry-run")
        says = [d["message"] for d in value["diagnostics"] if d["code"] == "KM592"]
        assert any("benchbox_slow2, which is selected now" in text for text in says) == lacking
        assert (code == 0) != lacking
