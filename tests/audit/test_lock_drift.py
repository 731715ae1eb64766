"""Every kind of edit to a map, contract, provider source, circuit, host or policy is a drift from the lock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sandbox import GROUP, Box, host, kernel_map, world, write

from kernelmap.cli.main import run

CODE = re.compile(r"^error\[(KM\d{3})\]", re.MULTILINE)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path) as made:
        yield made


def locked(box: Box) -> Path:
    path = box.root / "kernels.lock.json"
    arguments = ["lock", str(box.circuit), *box.flags, "--host", str(box.host), "--output", str(path)]
    assert run(arguments) == 0
    return path


def drift(box: Box, path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str]]:
    capsys.readouterr()
    code = run(["lock", "--check", "--lock", str(path), *box.flags, *flags])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, sorted(set(CODE.findall(said.err)))


def selection(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda value: value["selection"].update(changes)


def variants(value: dict[str, Any], **changes: Any) -> None:
    value["impl"]["variants"][0].update(changes)


def append(path: Path, text: str = "\nX = 1\n") -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def add_op(value: dict[str, Any]) -> None:
    first = value["blocks"]["main"]["ops"][0]
    value["blocks"]["main"]["ops"].append({**first, "name": "op2", "outputs": {"y": "op2_out"}})


def remove_all(box: Box) -> None:
    for name in ("fast", "plain", "risky"):
        box.map(name).unlink()


@dataclass(frozen=True)
class Edit:
    name: str
    apply: Callable[[Box], object]
    codes: str
    """What `lock --check` reports, all of it."""


EDITS = (
    # Maps
    Edit("priority of another", lambda b: b.edit(b.map("plain"), selection(priority=250)), "KM803 KM805"),
    Edit("priority, same order", lambda b: b.edit(b.map("plain"), selection(priority=150)), "KM803"),
    Edit("status of the selected", lambda b: b.edit(b.map("fast"), selection(status="diagnostic")), "KM803 KM805"),
    Edit("promotion", lambda b: b.edit(b.map("risky"), selection(status="production")), "KM803 KM805 KM809"),
    Edit("a candidate deprecated", lambda b: b.edit(b.map("risky"), selection(status="deprecated")), "KM803 KM809"),
    Edit("phases", lambda b: b.edit(b.map("fast"), selection(phases=["prefill"])), "KM803 KM805"),
    Edit("isa", lambda b: b.edit(b.map("fast"), lambda v: v.update(requires={"isa": ["avx512f"]})), "KM803 KM805"),
    Edit(
        "constraint", lambda b: b.edit(b.map("fast"), lambda v: v.update(constraints={"dims": {"H": {"max": 32}}})),
        "KM803 KM805",
    ),
    Edit("guard", lambda b: b.edit(b.map("fast"), lambda v: variants(v, shape_constraints={"R_min": 9})), "KM803"),
    Edit("variant gone", lambda b: b.edit(b.map("fast"), lambda v: v["impl"]["variants"].pop(0)), "KM803 KM808"),
    Edit(
        "function", lambda b: b.edit(b.map("fast"), lambda v: v["impl"].update(function="toybox.plain:matmul")),
        "KM803 KM804",
    ),
    Edit("map added", lambda b: write(b.map("new"), kernel_map("new", 50)), "KM810"),
    Edit("map added that wins", lambda b: write(b.map("new"), kernel_map("new", 500)), "KM805 KM809 KM810"),
    Edit("map removed", lambda b: b.map("risky").unlink(), "KM811"),
    Edit("selected map removed", lambda b: b.map("fast").unlink(), "KM805 KM811"),
    Edit("all maps removed", remove_all, "KM806 KM811"),
    Edit("map broken", lambda b: b.map("fast").write_text("{"), "KM008"),
    # The contract
    Edit(
        "arithmetic", lambda b: b.edit(b.contract, lambda v: v.update(arithmetic={"accumulator": "fp64"})), "KM801"
    ),
    Edit(
        "equivalence",
        lambda b: b.edit(b.contract, lambda v: v.update(equivalence={"kind": "tolerance", "rtol": 1e-5, "atol": 0.0})),
        "KM801",
    ),
    Edit("formats", lambda b: b.edit(b.contract, lambda v: v["weights"][0].update(dtype="q4_k")), "KM801 KM806"),
    # Sources
    Edit("provider source", lambda b: append(b.site / "fast.py"), "KM804"),
    Edit("comment in a source", lambda b: append(b.site / "fast.py", "# why\n"), "KM804"),
    Edit("imported source", lambda b: append(b.site / "helper.py"), "KM804"),
    Edit("source of a rejected map", lambda b: append(b.site / "risky.py"), "KM804"),
    Edit("source of the package", lambda b: append(b.site / "__init__.py"), "KM802 KM804"),
    Edit("source gone", lambda b: (b.site / "helper.py").unlink(), "KM804"),
    Edit("reference", lambda b: append(b.site / "oracle.py"), "KM802"),
    Edit("what the reference imports", lambda b: append(b.site / "arithmetic.py"), "KM802"),
    # The circuit
    Edit("op added", lambda b: b.edit(b.circuit, add_op), "KM812 KM819"),
    Edit(
        "route", lambda b: b.edit(b.circuit, lambda v: v.update(routes=[{"op": "op0", "allow": "toybox_risky"}])),
        "KM805 KM809 KM812",
    ),
    Edit(
        "layers", lambda b: b.edit(b.circuit, lambda v: v["layers"].update(count=2)), "KM812 KM815 KM819",
    ),
    Edit("storage", lambda b: b.edit(b.circuit, lambda v: v["dims"].update(H=128)), "KM812 KM815"),
    Edit("circuit gone", lambda b: b.circuit.unlink(), "KM001 KM814"),
    # The host
    Edit("feature lost", lambda b: write(b.host, host(isa=["fma"])), "KM808 KM816"),
    Edit("device won", lambda b: write(b.host, host(devices=["cpu", "cuda"])), "KM816"),
    Edit("host gone", lambda b: b.host.unlink(), "KM001 KM817"),
)  # fmt: skip

HARMLESS = (
    Edit("nothing", lambda b: None, ""),
    Edit("summary of a map", lambda b: b.edit(b.map("fast"), lambda v: v.update(summary="other")), ""),
    Edit("caveat of a map", lambda b: b.edit(b.map("fast"), lambda v: v.update(caveats=["mind"])), ""),
    Edit("summary of the contract", lambda b: b.edit(b.contract, lambda v: v.update(summary="other")), ""),
    Edit("layout of a file", lambda b: b.contract.write_text(json.dumps(json.loads(b.contract.read_text()))), ""),
    Edit("a source that nothing imports", lambda b: append(b.site / "unrelated.py"), ""),
    Edit("cores, which no check asks for", lambda b: write(b.host, host(cores=1, threads=8)), ""),
    Edit("a feature that no check asks for", lambda b: write(b.host, host(isa=["avx2", "bmi", "fma"])), ""),
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_every_edit_is_noticed(box: Box, edit: Edit, capsys: pytest.CaptureFixture[str]) -> None:
    path = locked(box)
    edit.apply(box)
    assert drift(box, path, capsys) == (1, edit.codes.split())


@pytest.mark.parametrize("edit", HARMLESS, ids=lambda edit: edit.name)
def test_what_changes_nothing_is_no_drift(box: Box, edit: Edit, capsys: pytest.CaptureFixture[str]) -> None:
    path = locked(box)
    edit.apply(box)
    assert drift(box, path, capsys) == (0, [])


def test_a_drift_says_what_it_was_and_is(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = locked(box)
    box.edit(box.map("fast"), selection(status="diagnostic"))
    capsys.readouterr()
    assert run(["lock", "--check", "--lock", str(path), *box.flags, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    changed = {item["message"]: (item["expected"], item["found"]) for item in found}
    both = ("toybox_fast", "toybox_plain")
    assert changed == {
        f"provider changed within the group: toybox {op} {phase} layers 0-2 on toybox_host": both
        for op in ("op0", "op1")
        for phase in ("prefill", "decode")
    } | {"map changed: toybox_fast": (f"production 200 in {GROUP}", f"diagnostic 200 in {GROUP}")}


def test_a_kill_switch_that_was_not_set_is_a_drift(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = locked(box)
    monkeypatch.setenv("TOYBOX_NO_WIDE", "1")
    assert drift(box, path, capsys) == (1, ["KM808", "KM818"])
    again = locked(box)
    assert drift(box, again, capsys) == (0, [])
    monkeypatch.delenv("TOYBOX_NO_WIDE")
    assert drift(box, again, capsys) == (1, ["KM808", "KM818"])


def test_a_deny_counts_against_the_lock(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = locked(box)
    assert drift(box, path, capsys, "--exclude", "toybox_fast") == (1, ["KM805", "KM818"])
    code, found = drift(box, path, capsys, "--exclude", "toybox_fast", "--exclude", "toybox_plain")
    assert (code, found) == (1, ["KM806", "KM809", "KM818"])


def test_a_new_circuit_is_a_drift_if_all_were_locked(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    path = box.root / "all.lock.json"
    folder = ["--circuits", str(box.circuit.parent)]
    assert run(["lock", *box.flags, *folder, "--host", "avx2_2core", "--output", str(path)]) == 0
    assert drift(box, path, capsys, *folder) == (0, [])
    value = json.loads(box.circuit.read_text(encoding="utf-8"))
    write(box.circuit.with_name("second.json"), {**value, "id": "second"})
    assert drift(box, path, capsys, *folder) == (1, ["KM813"])
    box.circuit.with_name("second.json").unlink()
    assert drift(box, path, capsys) == (1, ["KM301", "KM814"])
