"""The rule catalogue: every code that is used is explained, and every explained code is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelmap import rules
from kernelmap.rules import CATALOGUE

ROOT = Path(__file__).parent.parent
CODE = re.compile(r'"(KM\d{3})"')


def used() -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in (ROOT / "src", ROOT / "providers"):
        for path in folder.rglob("*.py"):
            if "rules" not in path.parts:
                for code in CODE.findall(path.read_text(encoding="utf-8")):
                    found[code] = str(path.relative_to(ROOT))
    return found


def test_every_used_code_is_in_the_catalogue() -> None:
    assert {code: where for code, where in used().items() if code not in CATALOGUE} == {}


def test_every_code_of_the_catalogue_is_used() -> None:
    assert sorted(set(CATALOGUE) - set(used())) == []


def test_a_code_stands_once_and_in_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = {"json_files": "0", "schema": "1", "registry": "2", "circuits": "3", "selection": "4"}
    ranges |= {"binding": "5", "ops": "55", "inventory": "6", "auditing": "8", "hosts": "7[0-4]", "usage": "7[5-9]|9"}
    ranges |= {"tracing": "57", "benching": "5[89]", "foreign": "8[56]"}
    for module in rules._MODULES:
        own = re.compile(f"KM(?:{ranges[module.__name__.rpartition('.')[2]]})")
        assert [rule.code for rule in module.RULES if not own.match(rule.code)] == []
    monkeypatch.setattr(rules, "_MODULES", (rules.json_files, rules.json_files))
    with pytest.raises(ValueError, match="KM001 stands twice"):
        rules._catalogue()


def test_rules_say_something() -> None:
    for rule in CATALOGUE.values():
        assert re.fullmatch(r"KM\d{3}", rule.code) and rule.title and not rule.title.endswith("."), rule.code
        assert rule.meaning.endswith(".") and rule.remedy.endswith("."), rule.code
        assert len({rule.title, rule.meaning, rule.remedy}) == 3
