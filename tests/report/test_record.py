"""The record of a report and its page as text: one record in both formats, self-contained, small, safe, whole."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sandbox import GROUP, Box, world
from worlds import HOSTILE, hostile

from kernelmap.cli.main import run
from kernelmap.models.report import Report
from kernelmap.report.page import json_block, report_html, report_value
from kernelmap.report.places import from_here
from kernelmap.schema_files import schema_text

Capture = pytest.CaptureFixture[str]


class Page(HTMLParser):
    """The scripts of a page by id, its tags, and every attribute value."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.title = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._inside = tag
        if tag == "script":
            self._name = dict(attrs).get("id") or "code"

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[self._name] = self.scripts.get(self._name, "") + data
        elif self._inside == "title":
            self.title += data

    @property
    def record(self) -> Any:
        return json.loads(self.scripts["record"])


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path) as made:
        yield made


def flags(box: Box, *more: str) -> list[str]:
    return ["report", str(box.circuit), *box.flags, "--hosts", f"{box.host},avx512_vnni_server", *more]


def printed(capsys: Capture, *arguments: str) -> Any:
    capsys.readouterr()
    assert run([*arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_record_in_json_and_html(box: Box, capsys: Capture, tmp_path: Path) -> None:
    value = printed(capsys, *flags(box))
    jsonschema.validate(value, json.loads(schema_text("report")))
    assert report_value(Report.model_validate_json(json.dumps(value))) == value
    assert run(flags(box, "--output", str(tmp_path / "r.html"))) == 0
    assert Page((tmp_path / "r.html").read_text(encoding="utf-8")).record == value


def test_its_decisions_are_those_of_resolve(box: Box, capsys: Capture) -> None:
    box.edit(box.map("fast"), lambda v: v.update(requires={"isa": ["avx512f"]}))
    made = Report.model_validate_json(json.dumps(printed(capsys, *flags(box))))
    names = {"toybox_host": str(box.host), "avx512_vnni_server": "avx512_vnni_server"}
    selected = set()
    for name, profile in names.items():
        plan = printed(capsys, "resolve", str(box.circuit), *box.flags, "--host", profile)
        mine = [item.decision.model_dump(mode="json") for item in made.decisions if name in item.hosts]
        assert mine == plan["decisions"] and mine
        selected |= {item["provider"] for item in mine}
    assert selected == {"toybox_fast", "toybox_plain"}


def test_hosts_that_share_a_decision_stand_in_it_together(box: Box, capsys: Capture) -> None:
    made = printed(capsys, *flags(box, "--hosts", str(box.host), "--hosts", "avx2_2core,neoverse_v2_server"))
    hosts = [tuple(item["hosts"]) for item in made["decisions"] if item["decision"]["name"] == "op0"]
    x86 = ("toybox_host", "avx512_vnni_server", "avx2_2core")
    assert hosts == [x86, x86, ("neoverse_v2_server",), ("neoverse_v2_server",)]


def test_its_audit_is_that_of_audit(box: Box, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(box.root)
    told = printed(capsys, *flags(box))["audit"]
    audited = printed(capsys, "audit", *flags(box)[1:])
    files = [item.pop("file", None) for item in told["findings"]]
    assert [str(box.root / name) for name in files] == [item.pop("file") for item in audited["findings"]]
    for mine, theirs in zip(told["findings"], audited["findings"], strict=True):
        assert mine == theirs
    assert told["candidates"] == audited["candidates"]
    assert [cell["ops"] for cell in told["cells"]] == [cell["ops"] for cell in audited["cells"]]


def test_holes_are_in_the_report_and_no_error_of_it(box: Box, capsys: Capture) -> None:
    value = printed(capsys, *flags(box, "--exclude", "toybox_fast", "--exclude", "toybox_plain"))
    assert {item["decision"]["provider"] for item in value["decisions"]} == {None}
    reasons = {r["code"] for item in value["decisions"] for c in item["decision"]["candidates"] for r in c["reasons"]}
    assert reasons == {"KM401", "KM411"}
    assert "KM841" in {item["code"] for item in value["audit"]["findings"]}


def test_a_circuit_that_does_not_elaborate_is_shown_as_such(box: Box, capsys: Capture, tmp_path: Path) -> None:
    box.edit(box.contract, lambda v: v["weights"][0].update(dtype="q4_k"))
    assert run(flags(box, "--output", str(tmp_path / "r.html"))) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert Page(text).record["decisions"] == [] and "error: " in text


def test_groups_and_maps_are_those_asked_for_or_all(box: Box, capsys: Capture) -> None:
    value = printed(capsys, *flags(box))
    assert [item["contract"]["equivalence_group"] for item in value["groups"]] == [GROUP]
    assert [item["map"]["id"] for item in value["maps"]] == ["toybox_fast", "toybox_plain", "toybox_risky"]
    assert value["maps"][0]["gaps"] == ["no evidence"]
    whole = printed(capsys, "report", *box.flags, "--hosts", "avx2_2core")
    assert len(whole["maps"]) == whole["audit"]["maps"] > 50


def test_a_diff_is_the_one_of_diff(box: Box, capsys: Capture, tmp_path: Path) -> None:
    sides = []
    for name, more in (("a", []), ("b", ["--exclude", "toybox_fast"])):
        sides.append(str(tmp_path / f"{name}.lock"))
        assert run(["lock", str(box.circuit), *box.flags, "--host", str(box.host), *more, "--output", sides[-1]]) == 0
    told = printed(capsys, *flags(box, "--diff", *sides))["diff"]
    assert [item["kind"] for item in told["changes"]] == [
        item["kind"] for item in printed(capsys, "diff", *sides)["changes"]
    ]
    assert (told["before"], told["after"]) == tuple(sides)
    assert "provider changed within the group" in {item["kind"] for item in told["changes"]}


def test_the_page_is_small_and_loads_nothing(shipped: Report) -> None:
    text = report_html(shipped)
    assert len(text.encode("utf-8")) < 3_000_000
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "srcset", "action", "style") or name[:2] == "on"]
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|import\(|eval|innerHTML|document\.write)\b", page.scripts["code"]
    )
    assert any(value.startswith("default-src 'none'; style-src 'sha256-") for _, value in page.attributes)


def test_the_same_report_gives_the_same_bytes(shipped: Report) -> None:
    assert report_html(shipped) == report_html(shipped)
    assert str(Path.cwd()) not in report_html(shipped), "a report says nothing of the machine that made it"


def test_hostile_texts_stay_texts(shipped: Report) -> None:
    plain, page = Page(report_html(shipped)), Page(report_html(hostile(shipped)))
    assert sorted(page.scripts) == ["code", "record", "rules"] and page.scripts["code"] == plain.scripts["code"]
    assert set(page.tags) <= set(plain.tags) and page.title == plain.title
    assert page.record["maps"][0]["map"]["id"] == page.record["decisions"][0]["circuit"] == HOSTILE
    assert page.record["audit"]["findings"][0]["help"] == HOSTILE


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "]]>", "\u2028\u2029", '"\\', "&lt;", "é🂡\0", HOSTILE])
def test_a_json_block_cannot_be_left(text: str) -> None:
    block = json_block({text: [text]})
    assert not set("<>&\u2028\u2029\0") & set(block)
    assert json.loads(block) == {text: [text]}


def test_places_are_relative_to_the_working_directory() -> None:
    here = Path("/a/b")
    assert from_here("/a/b/c/d.json", here) == "c/d.json"
    assert [from_here(name, here) for name in ("/a/bc/d.json", "e.json", "")] == ["/a/bc/d.json", "e.json", ""]


def test_without_an_output_it_goes_to_a_named_file(
    box: Box, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(flags(box)) == 0
    size = (tmp_path / "kernelmap-report.html").stat().st_size
    assert capsys.readouterr().out == f"wrote kernelmap-report.html ({size:,} bytes)\n"
    assert run(flags(box, "--format", "json", "--output", "r.json")) == 0
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["made_by"].startswith("kernelmap ")


def test_what_cannot_be_written_is_refused_and_leaves_nothing(box: Box, capsys: Capture, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"  # stands for a device: the real ones must never be written to by a test
    os.mkfifo(pipe)
    for path in (tmp_path, tmp_path / "none" / "r.html", pipe):
        before = sorted(tmp_path.rglob("*"))
        assert run(flags(box, "--output", str(path))) == 1
        assert "KM832" in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--hosts", "nowhere"], 1, "KM"),
        (["--format", "text"], 2, "html|json"),
        (["--diff", "one_side_only"], 2, "--diff"),
        (["--diff", "no_such_lock", "neither"], 1, "KM833"),
        (["--exclude", "toybox_fasst"], 0, ""),
    ],
)
def test_wrong_use(box: Box, capsys: Capture, tmp_path: Path, more: list[str], code: int, said: str) -> None:
    path = tmp_path / "r.html"
    assert run(flags(box, "--output", str(path), *more)) == code
    assert said in capsys.readouterr().err and path.exists() is (code == 0)


@pytest.mark.parametrize("where", ["kernelmap.report.build.audit", "kernelmap.files.os.fsync"])
def test_an_interrupt_leaves_the_old_file_and_no_other(
    box: Box, capsys: Capture, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = box.root / "r.html"
    path.write_text("old", encoding="utf-8")
    before = sorted(box.root.rglob("*"))
    monkeypatch.setattr(where, interrupt)
    assert run(flags(box, "--output", str(path))) == 130
    assert path.read_text(encoding="utf-8") == "old" and sorted(box.root.rglob("*")) == before
