"""The page in a browser: sections, search, filters, links, keyboard, colours, and 10,000 maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from worlds import HOSTILE, hostile, large_report

from kernelmap.audit_text import summary
from kernelmap.models.diff import Change, ChangeKind, Diff
from kernelmap.models.evidence import Evidence
from kernelmap.models.report import Report, ReportDecision
from kernelmap.report.page import audit_html, report_html
from kernelmap.vocabulary import Phase, Status

SECTIONS = ("coverage", "decisions", "groups", "maps", "claims", "candidates", "findings", "changes")
ROWS = "[...document.querySelectorAll('#view tbody tr')].filter((row) => row.offsetParent)"
CHANGES = Diff(
    before="a.lock",
    after="b.lock",
    changes=(
        Change(kind=ChangeKind.PROVIDER, circuit="qwen35_moe", op="router", phase=Phase.DECODE, layers="0-39",
               hosts=("avx2_2core",), before="gemv_fp32", after="another"),
        Change(kind=ChangeKind.MAP, subject="gemv_fp32", before="production 100", after="production 90"),
    ),
)  # fmt: skip


def write(folder: Path, text: str) -> Path:
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(shipped: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("page"), report_html(shipped.model_copy(update={"diff": CHANGES})))


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")
    return found


def count(browser: Browser) -> str:
    return texts(browser, ".count")[0]


def choose(browser: Browser, facet: str, value: str) -> None:
    browser.run(
        f"(() => {{ const e = document.getElementById('f-{facet}'); e.value = {json.dumps(value)};"
        "e.dispatchEvent(new Event('change')); return e.value; })()"
    )


def show_all(browser: Browser) -> None:
    browser.run("(() => { const more = document.querySelector('.more'); while (!more.hidden) more.click(); })()")


def rows(shipped: Report) -> list[tuple[ReportDecision, Any]]:
    return [(entry, item) for entry in shipped.decisions for item in entry.decision.candidates]


def test_every_section_opens_without_a_word_on_the_console(browser: Browser, page: Path) -> None:
    browser.look(1280)
    browser.open(page)
    assert browser.run("[...document.querySelectorAll('#sections a')].map((e) => e.dataset.name)") == list(SECTIONS)
    for name in SECTIONS:
        browser.go(f"#/{name}")
        shown = browser.run(
            "[...document.querySelectorAll('h1')].filter((e) => e.offsetParent).map((e) => e.textContent)"
        )
        assert shown == [name.capitalize()]
        assert texts(browser, "#sections a[aria-current]")[0].startswith(name.capitalize())
    assert browser.problems == [] and browser.loaded == [page.as_uri()]


def test_the_coverage_is_that_of_the_record(browser: Browser, page: Path, shipped: Report) -> None:
    browser.open(page)
    assert texts(browser, ".summary") == [summary(shipped.audit)]
    cells = [" ".join(text.split()) for text in texts(browser, ".matrix td")]
    assert len(cells) == len(shipped.audit.cells)
    by_place = {(cell.circuit, cell.host, cell.phase.value): cell for cell in shipped.audit.cells}
    order = [
        (c, h, p) for c in shipped.audit.circuits for h in shipped.audit.hosts for p in ("init", "prefill", "decode")
    ]
    for place, text in zip(order, cells, strict=True):
        cell = by_place[place]
        assert text.startswith(f"{place[2]} {cell.text.split()[0]}"), place
        assert all(name in text for name in (*cell.holes, *cell.single))
    assert any(cell.holes for cell in shipped.audit.cells)


def test_every_rejected_map_and_reason_is_shown(browser: Browser, page: Path, shipped: Report) -> None:
    browser.open(page, "#/decisions")
    show_all(browser)
    shown = [tuple(row) for row in browser.run(f"{ROWS}.map((row) => [...row.cells].map((cell) => cell.textContent))")]
    assert len(shown) == len(rows(shipped))
    for (_, item), (name, rank, outcome) in zip(rows(shipped), shown, strict=True):
        assert (name, rank) == (item.id, f"{item.status.value} {item.priority}")
        assert all(f"{reason.code} {reason.message}" in outcome for reason in item.reasons)
        assert outcome.startswith("selected" if item.selected else ("rejected", "outranked", "tied"))
    holes = [entry for entry in shipped.decisions if entry.decision.provider is None]
    assert len(texts(browser, "article.decision.bad")) == len(holes) > 0


def test_filters_and_search_narrow_decisions_together(browser: Browser, page: Path, shipped: Report) -> None:
    total = len(rows(shipped))
    for facet, value, keeps in (
        ("phase", "prefill", lambda e, c: e.decision.phase is Phase.PREFILL),
        ("host", "avx2_2core", lambda e, c: "avx2_2core" in e.hosts),
        ("status", "candidate", lambda e, c: c.status is Status.CANDIDATE),
        ("outcome", "selected", lambda e, c: c.selected),
        ("outcome", "no provider", lambda e, c: e.decision.provider is None),
        ("circuit", "toy_hybrid", lambda e, c: e.circuit == "toy_hybrid"),
    ):
        browser.open(page, "#/decisions")
        assert count(browser) == f"{total} rows"
        choose(browser, facet, value)
        wanted = sum(keeps(entry, item) for entry, item in rows(shipped))
        assert 0 < wanted < total and count(browser) == f"{wanted} of {total} rows", facet
    browser.open(page, "#/decisions?phase=decode&q=km401")
    wanted = [
        item.id
        for entry, item in rows(shipped)
        if entry.decision.phase is Phase.DECODE and any(reason.code == "KM401" for reason in item.reasons)
    ]
    assert texts(browser, "#view tbody th") == wanted and wanted
    browser.run("document.getElementById('q').focus()")
    browser.run("document.getElementById('q').select()")
    browser.type("no such thing")
    assert count(browser) == f"0 of {total} rows" and "Nothing matches." in texts(browser, ".results")[0]
    assert browser.run("location.hash") == "#/decisions?phase=decode&q=no+such+thing", (
        "a filtered view can be passed on"
    )
    browser.run("[...document.querySelectorAll('.filters button')][0].click()")
    assert count(browser) == f"{total} rows" and browser.run("location.hash") == "#/decisions"


def test_maps_are_filtered_by_what_became_of_them_on_one_host(browser: Browser, page: Path, shipped: Report) -> None:
    browser.open(page, "#/maps?host=avx2_2core&phase=decode&outcome=selected")
    selected = {
        entry.decision.provider
        for entry in shipped.decisions
        if "avx2_2core" in entry.hosts and entry.decision.phase is Phase.DECODE and entry.decision.provider
    }
    show_all(browser)
    assert set(texts(browser, "#view tbody th a")) == selected
    browser.go("#/maps?status=diagnostic")
    assert count(browser).startswith(
        f"{sum(item.map.selection.status is Status.DIAGNOSTIC for item in shipped.maps)} of "
    )


def test_findings_and_changes_are_all_there(browser: Browser, page: Path, shipped: Report) -> None:
    browser.open(page, "#/findings")
    show_all(browser)
    assert texts(browser, "#view .message") == [item.message for item in shipped.audit.findings]
    choose(browser, "severity", "error")
    errors = [item.message for item in shipped.audit.findings if item.severity == "error"]
    assert texts(browser, "#view .message") == errors and errors
    browser.go("#/changes?class=map+changed")
    assert browser.run(f"{ROWS}.map((row) => row.innerText)")[0].split("\t")[0] == "map changed"
    assert count(browser) == "1 of 2 changes"


def test_every_link_leads_somewhere(browser: Browser, page: Path, shipped: Report) -> None:
    browser.open(page)
    links: set[str] = set()
    for name in SECTIONS:
        browser.go(f"#/{name}")
        if name != "coverage" and browser.run("Boolean(document.querySelector('.more'))"):
            show_all(browser)
        links |= set(browser.run("[...document.querySelectorAll('a')].map((e) => e.getAttribute('href'))"))
    assert len(links) > len(shipped.maps) + len(shipped.groups)
    pages = {f"#/map/{item.map.id}" for item in shipped.maps}
    pages |= {f"#/group/{item.contract.equivalence_group}" for item in shipped.groups}
    named = {link for link in links if link.startswith(("#/map/", "#/group/"))}
    assert named <= pages
    # Browsers refuse more than some 200 moves in ten seconds: of the pages that are alike, a few are opened.
    for link in sorted(links - named - {"#main"}) + sorted(named)[::8]:
        browser.go(link)
        assert "Not in this report" not in texts(browser, "h1"), link
        assert browser.run("location.hash") == link
        if link in named:
            assert texts(browser, "#view h1") == [link.rpartition("/")[2]]
    assert browser.problems == []
    browser.go("#/map/none_such")
    assert texts(browser, "#view h1") == ["Not in this report"]


def test_a_group_shows_its_contract_and_evidence(browser: Browser, page: Path, shipped: Report) -> None:
    entry = next(item for item in shipped.decisions if item.decision.name == "routed_experts")
    group = next(g for g in shipped.groups if g.contract.equivalence_group == entry.decision.group)
    browser.open(page, f"#/group/{entry.decision.group}")
    text = texts(browser, "#view")[0]
    for said in (group.digest, group.contract.oracle, group.contract.summary, *group.contract.arithmetic.values()):
        assert said in text
    for port in group.contract.ports.values():
        assert port.name in text and port.dtype in text
    ladder = [item.map.id for item in shipped.maps if item.map.selection.equivalence_group == entry.decision.group]
    assert len(ladder) > 2 and all(name in text for name in ladder)


def test_evidence_is_valid_stale_or_missing(browser: Browser, shipped: Report, tmp_path: Path) -> None:
    proof = Evidence(
        schema_version=1, provider="x", contract_digest="", map_digest="", source_digest="sha256:5", corpus_digest="",
        reference_digest="sha256:7", host="a host", isa_paths=("avx2",), not_run=("avx512f",), cases=321, seconds=1.0,
        toolchain={"numba": "0.61"}, worst_error=0.25, result="pass",
    )  # fmt: skip
    valid, stale = (item.model_copy(update={"evidence": proof}) for item in shipped.maps[:2])
    valid = valid.model_copy(update={"gaps": ()})
    stale = stale.model_copy(update={"gaps": ("the map changed",)})
    without = (item.model_copy(update={"evidence": None, "gaps": ("no evidence",)}) for item in shipped.maps[2:])
    made = shipped.model_copy(update={"maps": (valid, stale, *without)})
    browser.open(write(tmp_path, report_html(made)), "#/maps?evidence=valid")
    assert texts(browser, "#view tbody th a") == [valid.map.id]
    browser.go("#/maps?evidence=stale")
    assert texts(browser, "#view tbody th a") == [stale.map.id]
    browser.go(f"#/map/{stale.map.id}")
    told = texts(browser, "#view")[0]
    for said in (
        "stale the map changed",
        "321",
        "0.25",
        "a host",
        "avx2",
        "avx512f",
        "numba 0.61",
        "sha256:5",
        "sha256:7",
    ):
        assert said in told
    browser.go("#/maps?evidence=none")
    assert count(browser) == f"{len(shipped.maps) - 2} of {len(shipped.maps)} maps"


def test_hostile_texts_are_shown_and_not_run(browser: Browser, shipped: Report, tmp_path: Path) -> None:
    browser.open(write(tmp_path, report_html(hostile(shipped))))
    hashes = browser.run("[...document.querySelectorAll('.matrix a')].map((e) => e.hash)")
    sections = [f"#/{name}" for name in SECTIONS[1:-1]]
    for hash in (*sections, *hashes, f"#/map/{browser.run(f'encodeURIComponent({json.dumps(HOSTILE)})')}"):
        browser.go(hash)
        assert browser.run("document.querySelectorAll('img, script:not(#record):not(#rules)').length") == 1, hash
        if hash not in ("#/groups", "#/claims", "#/candidates"):
            assert HOSTILE in texts(browser, "#view")[0], hash
    assert browser.problems == []


def test_the_keyboard_reaches_everything_and_the_focus_is_seen(browser: Browser, page: Path) -> None:
    browser.look(1280)
    browser.open(page, "#/decisions")
    browser.key("Tab")
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("document.activeElement.getBoundingClientRect().left >= 0")
    browser.key("Enter", "\r")
    assert browser.run("document.activeElement.id") == "main" and browser.run("location.hash") == "#/decisions"
    seen = []
    for _ in range(9):
        browser.key("Tab")
        style = "getComputedStyle(document.activeElement)"
        assert browser.run(f"{style}.outlineStyle") != "none" and browser.run(f"parseFloat({style}.outlineWidth)") >= 2
        seen.append(browser.run("document.activeElement.tagName + '#' + document.activeElement.id"))
    facets = ["circuit", "phase", "host", "status", "outcome"]
    assert seen[:7] == ["INPUT#q", *(f"SELECT#f-{name}" for name in facets), "BUTTON#"] and seen[7] == "A#"
    browser.run("document.querySelector('#sections a[data-name=maps]').focus()")
    browser.key("Enter", "\r")
    browser.run("new Promise((done) => setTimeout(() => done(1), 50))")
    assert browser.run("document.activeElement.textContent") == "Maps", "a new section takes the focus to its heading"


def test_the_theme_is_the_systems_until_it_is_chosen(browser: Browser, page: Path) -> None:
    back = "getComputedStyle(document.documentElement).backgroundColor"
    browser.look(1280, "light")
    browser.open(page)
    light = browser.run(back)
    browser.look(1280, "dark")
    dark = browser.run(back)
    assert light == "rgb(255, 255, 255)" != dark
    browser.run("document.getElementById('theme').focus()")
    for text, wanted in (("Theme: light", light), ("Theme: dark", dark), ("Theme: auto", dark)):
        browser.key("Space", " ")
        assert texts(browser, "#theme") == [text] and browser.run(back) == wanted


CONTRAST = """(() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => channels(text).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const back = getComputedStyle(at).backgroundColor;
      if (channels(back)[3] !== 0) return back;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) || !e.offsetParent) continue;
    const [one, two] = [light(getComputedStyle(e).color), light(behind(e))].sort((a, b) => b - a);
    if ((one + 0.05) / (two + 0.05) < 4.5) poor.add(`${e.tagName}.${e.className} ${e.textContent.slice(0, 30)}`);
  }
  return [...poor];
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_sections_fit_and_can_be_read(
    browser: Browser, page: Path, shipped: Report, tmp_path: Path, width: int, scheme: str
) -> None:
    browser.look(width, scheme)
    browser.open(page)
    group = next(item.decision.group for item in shipped.decisions if item.decision.name == "routed_experts")
    for name in (*SECTIONS, f"group/{group}", "map/moe_swiglu_expert_forward_q4k_q5k_bucketed"):
        browser.go(f"#/{name}")
        assert browser.run("document.documentElement.scrollWidth") <= width, name
        assert browser.run(CONTRAST) == [], name
        picture = tmp_path / f"{name.partition('/')[0]}.png"
        browser.screenshot(picture)
        assert int.from_bytes(picture.read_bytes()[16:20], "big") == width


def test_ten_thousand_maps_are_shown_a_page_at_a_time(browser: Browser, shipped: Report, tmp_path: Path) -> None:
    large = large_report(shipped, 10_000)
    browser.look(1280)
    browser.open(write(tmp_path, report_html(large)), "#/maps")
    assert count(browser) == "10,000 maps" and browser.run(f"{ROWS}.length") == 100
    browser.run("document.querySelector('.more').click()")
    assert browser.run(f"{ROWS}.length") == 200 and texts(browser, ".more") == ["Show 100 more (9,800 left)"]
    last = large.maps[-1].map.id
    browser.run("document.getElementById('q').focus()")
    browser.type(last)
    assert texts(browser, "#view tbody th a") == [last]
    for name in ("decisions", "groups", "findings"):
        browser.go(f"#/{name}")
        assert 0 < browser.run(f"{ROWS}.length") <= 100
    assert browser.problems == []


def test_an_audit_has_the_same_look_and_only_its_sections(browser: Browser, shipped: Report, tmp_path: Path) -> None:
    browser.look(1280)
    browser.open(write(tmp_path, audit_html(shipped.audit)))
    assert browser.run("[...document.querySelectorAll('#sections a')].map((e) => e.dataset.name)") == [
        "coverage", "candidates", "findings",
    ]  # fmt: skip
    assert texts(browser, ".title") == ["kernelmap audit"] and not texts(browser, ".matrix a")
    browser.go("#/candidates")
    assert len(texts(browser, "#view tbody tr")) == len(shipped.audit.candidates) > 0
    browser.go("#/findings")
    assert count(browser) == f"{len(shipped.audit.findings)} findings" and browser.problems == []
