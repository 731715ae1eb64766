"""The rule catalogue: every code that is used is explained, and every explained code is used."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_rules_say_something() -> None:
    for rule in CATALOGUE.values():
        assert rule.code.startswith("KM") and len(rule.code) == 5
        assert (rule.title and rule.title[0].islower()) or rule.title[0].isupper()
        assert rule.meaning.endswith(".") and rule.remedy.endswith("."), rule.code
        assert len({rule.title, rule.meaning, rule.remedy}) == 3
