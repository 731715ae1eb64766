"""Renderings of one diagnostic: text with carets, GitHub, JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmap.errors import Diagnostic, Place, Severity
from kernelmap.jsonsource import parse_json
from kernelmap.render import render_github, render_text, summary, to_json

SOURCE = parse_json(b'{\n  "status": "produktion",\n  "x": 1\n}', "maps/a.json")
PROBLEM = Diagnostic(
    "KM104",
    "/status: value not allowed",
    place=SOURCE.place("/status"),
    expected="'production'",
    found="'produktion'",
    help="use one of them",
    near=("production",),
)


def problem_of(message: str, name: str, line: int, column: int, source: str) -> Diagnostic:
    return Diagnostic("KM107", message, place=Place(name, line, column, "", source, 3), found=name, help=source)


def test_text_shows_the_line_and_carets() -> None:
    assert render_text([PROBLEM]) == (
        "error[KM104]: /status: value not allowed\n"
        " --> maps/a.json:2:13\n"
        "  |\n"
        '2 |   "status": "produktion",\n'
        "  |             ^^^^^^^^^^^^\n"
        "  = note: expected 'production', found 'produktion'\n"
        "  = near: production\n"
        "  = help: use one of them\n"
        "\n"
        "1 error\n"
    )


def test_colour_only_when_asked() -> None:
    assert "\x1b" not in render_text([PROBLEM])
    coloured = render_text([PROBLEM], color=True)
    assert "\x1b[1;31m" in coloured
    import re

    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_text([PROBLEM])


def test_long_lines_are_cut_around_the_caret() -> None:
    text = '{"a": "' + "x" * 300 + '", "bad": 1, "c": "' + "y" * 300 + '"}'
    place = parse_json(text.encode(), "long.json").place("/bad", key=True)
    shown = render_text([Diagnostic("KM102", "unknown field 'bad'", place=place)])
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    code, carets = lines[3], lines[4]
    assert code[carets.index("^") : carets.rindex("^") + 1] == '"bad"'


def test_everything_wraps_at_eighty_columns() -> None:
    shown = render_text([Diagnostic("KM450", "word " * 60, help="help " * 60)])
    assert max(map(len, shown.splitlines())) <= 80


def test_control_characters_cannot_reach_a_terminal() -> None:
    place = Place("f", 1, 1, "", "a\x1b[2Jb", 1)
    shown = render_text([Diagnostic("KM102", "bad \x1b]0;title\x07", place=place, found="\x1b")])
    assert "\x1b" not in shown and "\x07" not in shown


def test_file_names_cannot_reach_a_terminal_either() -> None:
    place = Place("a\x1b[2J\udcff\u202e.json", 1, 1, "", "{", 1)
    problem = Diagnostic("KM102", "unknown\u200b", place=place)
    for shown in (render_text([problem]), render_github([problem])):
        assert "\\x1b[2J\\udcff\\u202e.json" in shown and "unknown\\u200b" in shown
        shown.encode("utf-8")
    json.dumps(to_json(problem), ensure_ascii=False).encode("utf-8")


def test_a_file_name_is_one_line() -> None:
    shown = render_text([Diagnostic("KM102", "x", place=Place("a\nerror[KM000]: forged", 1, 1, "", "{", 1))])
    assert "--> a\\nerror[KM000]: forged:1:1\n" in shown


@pytest.mark.parametrize("column", [1, 8, 15, 60])
def test_carets_stand_under_what_is_meant_also_behind_wide_characters(column: int) -> None:
    line = '{"日本": "e\u0301", "x": 1, "語": "' + "長い" * 40 + '"}'
    shown = render_text([Diagnostic("KM102", "x", place=Place("f", 1, column, "", line, 2))]).splitlines()
    code, carets = shown[3], shown[4]
    assert cells(code) <= 80
    first, last = carets.index("^"), carets.rindex("^")
    under, at = "", 0
    for char in code:
        if first <= at <= last:
            under += char
        at += cells(char)
    assert under.startswith(line[column - 1])


def cells(text: str) -> int:
    """Columns of a terminal, for the characters of the test above."""
    return sum(0 if char == "\u0301" else 2 if char in "日本語長い" else 1 for char in text)


@given(
    st.lists(st.builds(problem_of, st.text(), st.text(), st.integers(0, 30), st.integers(1, 30), st.text()), max_size=3)
)
def test_every_diagnostic_can_be_rendered(problems: list[Diagnostic]) -> None:
    text = render_text(problems)
    assert text.encode("utf-8") and all(line.isprintable() for line in text.splitlines())
    assert text == render_text(problems) and text.endswith("\n")
    assert len(render_github(problems).splitlines()) == len(problems)
    assert json.loads(json.dumps([to_json(item) for item in problems])) == [to_json(item) for item in problems]


def test_github_escapes_and_places() -> None:
    made = render_github([Diagnostic("KM1", "100% wrong\nreally", Severity.WARNING, place=Place("a,b:c.json", 3, 4))])
    assert made == "::warning file=a%2Cb%3Ac.json,line=3,col=4,title=KM1::100%25 wrong%0Areally\n"


def test_github_is_silent_when_all_is_well() -> None:
    assert render_github([]) == ""


def test_json_has_stable_keys() -> None:
    value = to_json(PROBLEM)
    assert value["file"] == "maps/a.json" and value["line"] == 2 and value["column"] == 13
    assert value["pointer"] == "/status" and value["near"] == ["production"]
    assert set(value) == set(to_json(Diagnostic("KM1", "x")))


def test_summary_counts() -> None:
    warning = Diagnostic("KM1", "w", Severity.WARNING)
    assert summary([PROBLEM, PROBLEM, warning]) == "2 errors, 1 warning"
    assert summary([]) == "no problems"
