"""SARIF: fits the official schema, and says what the diagnostics say."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from kernelmap.cli.main import run
from kernelmap.errors import Diagnostic, Place, Severity
from kernelmap.sarif import sarif

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))


def valid(log: object) -> None:
    jsonschema.Draft4Validator(SCHEMA).validate(log)


def test_the_schema_is_the_official_one() -> None:
    jsonschema.Draft4Validator.check_schema(SCHEMA)
    assert SCHEMA["id"].endswith("/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json")
    assert sarif([])["$schema"] == SCHEMA["id"]


def test_an_empty_run_is_a_log() -> None:
    log = sarif([])
    valid(log)
    assert log["runs"][0]["results"] == []


def test_every_part_of_a_diagnostic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside = Place(str(tmp_path / "a b%ü.json"), 3, 7, "/selection/status", '  "status": "x"', 4)
    items = [
        Diagnostic("KM203", "one\ttab", place=inside, expected="a", found="b", help="c\nd", near=("e", "f")),
        Diagnostic("KM101", "two", Severity.WARNING, place=Place("/elsewhere/b.json")),
        Diagnostic("KM203", "three \udcff", Severity.NOTE),
    ]
    log = sarif(items)
    valid(log)
    json.dumps(log, ensure_ascii=False).encode("utf-8")
    made = log["runs"][0]
    assert [rule["id"] for rule in made["tool"]["driver"]["rules"]] == ["KM101", "KM203"]
    assert [result["ruleIndex"] for result in made["results"]] == [1, 0, 1]
    assert [result["level"] for result in made["results"]] == ["error", "warning", "note"]
    first = made["results"][0]["locations"][0]["physicalLocation"]
    assert first["artifactLocation"] == {"uri": "a%20b%25%C3%BC.json", "uriBaseId": "%SRCROOT%"}
    assert first["region"] == {"startLine": 3, "startColumn": 7, "endColumn": 11}
    assert made["results"][1]["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "file:///elsewhere/b.json"}
    }
    assert "locations" not in made["results"][2]
    assert made["results"][0]["message"]["text"] == "one\ttab\nexpected: a\nfound: b\nnear: e, f\nhelp: c\nd"


def test_a_fingerprint_outlives_an_edit_above(tmp_path: Path) -> None:
    def of(line: int, message: str = "m") -> str:
        place = Place(str(tmp_path / "a.json"), line, 1, "/id")
        found: str = sarif([Diagnostic("KM203", message, place=place)])["runs"][0]["results"][0]["partialFingerprints"][
            "kernelmap/v1"
        ]
        return found

    assert of(1) == of(9) != of(1, "n")


def test_check_writes_sarif_also_of_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--format", "sarif"]) == 0
    valid(json.loads(capsys.readouterr().out))
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema_version": 1, "id": "broken", "impl": {}, "selection": {"status": "x"}}')
    assert run(["check", str(broken), "--format", "sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    valid(log)
    assert {result["level"] for result in log["runs"][0]["results"]} == {"error"}
    assert run(["check", str(tmp_path / "none.json"), "--format", "sarif"]) == 1
    valid(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("words", [["list", "--format", "sarif"], ["diff", "a", "b", "--format", "sarif"]])
def test_commands_without_sarif_say_so(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert "one of" in capsys.readouterr().err
