"""Diffs of locks, registries, git revisions and hosts: each change has its class, in every format."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sandbox import GROUP, Box, host, kernel_map, world, write

from kernelmap.cli.main import run
from kernelmap.diff import CODES, compare
from kernelmap.lock import read_lock
from kernelmap.models.diff import ChangeKind, Diff
from kernelmap.rules import CATALOGUE
from kernelmap.schema_files import schema_text


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path) as made:
        yield made


def lock(box: Box, name: str, *flags: str) -> Path:
    path = box.root / name
    given = [*box.flags, "--host", str(box.host), *flags]
    assert run(["lock", str(box.circuit), *given, "--output", str(path)]) == 0
    return path


def differ(capsys: pytest.CaptureFixture[str], *words: str) -> Diff:
    capsys.readouterr()
    assert run(["diff", *words, "--format", "json"]) == 0
    text = capsys.readouterr().out
    jsonschema.validate(json.loads(text), json.loads(schema_text("diff")))
    return Diff.model_validate_json(text)


def kinds(found: Diff) -> dict[str, int]:
    counts: dict[str, int] = {}
    for change in found.changes:
        counts[change.kind.value] = counts.get(change.kind.value, 0) + 1
    return counts


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_every_class_has_a_rule_of_its_title() -> None:
    assert set(CODES) == set(ChangeKind)
    assert {CATALOGUE[code].title for code in CODES.values()} == {kind.value for kind in ChangeKind}


def test_two_locks(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    one = lock(box, "one.json")
    assert run(["diff", str(one), str(one), "--exit-code"]) == 0
    box.edit(box.map("plain"), lambda value: value["selection"].update(priority=250))
    (box.site / "helper.py").write_text("X = 1\n")
    two = lock(box, "two.json")
    found = differ(capsys, str(one), str(two))
    assert kinds(found) == {"provider changed within the group": 4, "map changed": 1, "source changed": 1}
    first = found.changes[0]
    assert (first.before, first.after, first.layers, first.hosts) == (
        "toybox_fast", "toybox_plain", "0-2", ("toybox_host",)
    )  # fmt: skip
    assert run(["diff", str(one), str(two), "--exit-code"]) == 1
    assert run(["diff", str(one), str(two)]) == 0


def test_a_diff_read_backwards_has_the_same_places(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    one = lock(box, "one.json")
    box.edit(box.map("fast"), lambda value: value["selection"].update(status="diagnostic"))
    two = lock(box, "two.json")
    there, back = differ(capsys, str(one), str(two)), differ(capsys, str(two), str(one))
    swapped = {(c.kind, c.where, c.subject, c.after, c.before) for c in back.changes}
    assert {(c.kind, c.where, c.subject, c.before, c.after) for c in there.changes} == swapped


def test_two_registries(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    other = box.root / "other"
    for path in (*box.maps.glob("*.json"), box.contract):
        target = other / path.relative_to(box.maps)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    write(other / "toybox_new.json", kernel_map("new", 50, "candidate"))
    (other / "toybox_risky.json").unlink()
    box.edit(other / "contracts" / f"{GROUP}.json", lambda v: v["arithmetic"].update(accumulator="fp64"))
    flags = ["--circuits", str(box.circuit.parent), "--host", str(box.host)]
    found = differ(capsys, str(box.maps), str(other), *flags)
    assert kinds(found) == {"contract changed": 1, "provider added": 1, "provider removed": 1}
    for name in ("fast", "plain"):
        (other / f"toybox_{name}.json").unlink()
    found = differ(capsys, str(box.maps), str(other), *flags)
    assert kinds(found)["became unresolvable"] == 4
    hole = next(change for change in found.changes if change.kind is ChangeKind.UNRESOLVABLE)
    assert (hole.before, hole.after) == ("toybox_fast", "no provider: toybox_new: KM401 no route allows it")
    assert kinds(differ(capsys, str(other), str(box.maps), *flags))["ceased to be unresolvable"] == 4


def test_two_hosts(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    write(box.host.with_name("bare.json"), host(isa=["fma"], name="bare"))
    flags = [*box.flags, "--circuits", str(box.circuit.parent)]
    found = differ(capsys, f"host:{box.host}", f"host:{box.host.with_name('bare.json')}", *flags)
    ours = [change for change in found.changes if change.circuit in ("", "toybox")]
    changed = [change for change in ours if change.kind is ChangeKind.VARIANTS]
    assert {(c.op, c.phase.value if c.phase else "", c.before, c.after) for c in changed} == {
        (op, phase, "wide, serial", "serial") for op in ("op0", "op1") for phase in ("prefill", "decode")
    }
    facts = next(change for change in ours if change.kind is ChangeKind.HOST)
    assert facts.subject == "toybox_host, now bare" and "avx2" in facts.after


def test_a_deny_is_honoured_in_a_diff(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*box.flags, "--circuits", str(box.circuit.parent), "--exclude", "toybox_fast"]
    capsys.readouterr()
    assert run(["diff", f"host:{box.host}", "host:avx2_2core", *flags, "--format", "json"]) == 0
    assert "toybox_fast" not in capsys.readouterr().out


def test_two_revisions(box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    git(box.root, "init", "-q")
    git(box.root, "add", "kernel_maps", "circuits", "providers")
    git(box.root, "commit", "-q", "-m", "one")
    (box.site / "arithmetic.py").write_text("def product(x, weight):\n    return weight @ x\n")
    (box.site / "helper.py").write_text("X = 2\n")
    git(box.root, "commit", "-q", "-a", "-m", "two")
    box.edit(box.map("plain"), lambda value: value["selection"].update(priority=250))
    git(box.root, "commit", "-q", "-a", "-m", "three")
    monkeypatch.chdir(box.maps)
    flags = ["--host", str(box.host)]
    assert kinds(differ(capsys, "git:HEAD~2", "HEAD~1", *flags)) == {"reference changed": 1, "source changed": 1}
    assert kinds(differ(capsys, "HEAD~1", "HEAD", *flags)) == {
        "provider changed within the group": 4, "map changed": 1,
    }  # fmt: skip
    assert kinds(differ(capsys, "HEAD", git(box.root, "rev-parse", "HEAD"), *flags)) == {}
    (box.site / "helper.py").write_text("X = 3\n")
    monkeypatch.chdir(box.root)
    found = differ(capsys, "HEAD", "kernel_maps", "--circuits", "circuits", *flags)
    assert {c.subject for c in found.changes if c.kind is ChangeKind.SOURCE} == {"toybox_fast"}
    assert git(box.root, "status", "--short", "--untracked-files=no") == "M providers/toybox/helper.py"


@pytest.mark.parametrize("word", ["git:nowhere", "nowhere", "--nowhere", "host:nowhere"])
def test_sides_that_are_none(
    box: Box, word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    git(box.root, "init", "-q")
    monkeypatch.chdir(box.root)
    assert run(["diff", "--host", str(box.host), "--", word, "host:avx2_2core"]) == 1
    assert ("KM701" if word.startswith("host") else "KM833") in capsys.readouterr().err


def test_one_record_in_every_format(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    one = lock(box, "one.json")
    box.edit(box.map("fast"), lambda value: value["selection"].update(status="diagnostic"))
    two = lock(box, "two.json")
    found = differ(capsys, str(one), str(two))
    said: dict[str, str] = {}
    for name in ("text", "md", "github"):
        assert run(["diff", str(one), str(two), "--format", name]) == 0
        said[name] = " ".join(capsys.readouterr().out.split())
    assert max(map(len, said["text"].splitlines())) > 0
    for change in found.changes:
        for text in said.values():
            for part in (change.kind.value, change.subject, change.op, change.before, change.after):
                assert part in text
    assert said["github"].count("::warning") == len(found.changes)
    assert run(["diff", str(one), str(two)]) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


def test_circuits_of_the_second_side_count_only_against_a_complete_first(box: Box) -> None:
    one = read_lock(lock(box, "one.json"))
    two = one.model_copy(update={"circuits": {**one.circuits, "second": one.circuits["toybox"]}})
    assert compare(one, two).changes == ()
    whole: Any = one.model_copy(update={"complete": True})
    assert [change.kind for change in compare(whole, two).changes] == [ChangeKind.CIRCUIT_ADDED]
    assert [change.kind for change in compare(two, one).changes] == [ChangeKind.CIRCUIT_REMOVED]
