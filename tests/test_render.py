"""Renderings of one diagnostic: text with carets, GitHub, JSON."""

from __future__ import annotations

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


def test_github_escapes_and_places() -> None:
    made = render_github([Diagnostic("KM1", "100% wrong\nreally", Severity.WARNING, place=Place("a,b:c.json", 3, 4))])
    assert made == "::warning file=a%2Cb%3Ac.json,line=3,col=4,title=KM1::100%25 wrong%0Areally\n"


def test_json_has_stable_keys() -> None:
    value = to_json(PROBLEM)
    assert value["file"] == "maps/a.json" and value["line"] == 2 and value["column"] == 13
    assert value["pointer"] == "/status" and value["near"] == ["production"]
    assert set(value) == set(to_json(Diagnostic("KM1", "x")))


def test_summary_counts() -> None:
    warning = Diagnostic("KM1", "w", Severity.WARNING)
    assert summary([PROBLEM, PROBLEM, warning]) == "2 errors, 1 warning"
    assert summary([]) == "no problems"
