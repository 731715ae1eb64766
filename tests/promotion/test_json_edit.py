"""Edits of JSON texts in place: one value changes, every other byte stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmap.json_edit import with_appended, with_value, without_item
from kernelmap.jsonsource import JsonSource, parse_json

ODD = '{ "b" :1,\t"selection":{"status":\n"candidate" , "p": 1.50e+1},\n\n "caveats":[ "x",\n   "é\\u00e9" ] }\r\n'


def source(text: str) -> JsonSource:
    return parse_json(text.encode(), "odd.json")


def test_a_value_is_replaced_and_nothing_else() -> None:
    after = with_value(source(ODD), "/selection/status", "production")
    assert after.text == ODD.replace('"candidate"', '"production"')
    with pytest.raises(KeyError):
        with_value(source(ODD), "/selection/stat", "production")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ODD, ODD.replace('00e9" ]', '00e9",\n   "new" ]')),
        ('{"caveats": ["a"]}', '{"caveats": ["a","new"]}'),
        ('{\n  "caveats": [\n    "a"\n  ]\n}\n', '{\n  "caveats": [\n    "a",\n    "new"\n  ]\n}\n'),
        ('{\n  "caveats": []\n}', '{\n  "caveats": [\n    "new"\n  ]\n}'),
        ('{\n  "a": 1\n}\n', '{\n  "a": 1,\n  "caveats": [\n    "new"\n  ]\n}\n'),
        ('{"a/b": 1}', '{"a/b": 1, "caveats": ["new"]}'),
    ],
)
def test_an_item_is_appended_as_the_file_is_written(before: str, after: str) -> None:
    assert with_appended(source(before), "caveats", "new").text == after


@pytest.mark.parametrize(
    ("index", "after"),
    [(0, '{"k": ["b",  "c"], "z": 1}'), (1, '{"k": ["a", "c"], "z": 1}'), (2, '{"k": ["a", "b"], "z": 1}')],
)
def test_an_item_goes_with_its_comma(index: int, after: str) -> None:
    assert without_item(source('{"k": ["a", "b",  "c"], "z": 1}'), "k", index).text == after


def test_the_last_item_leaves_an_empty_array() -> None:
    assert without_item(source('{\n "k": [\n  "a"\n ]\n}'), "k", 0).text == '{\n "k": []\n}'


@given(st.lists(st.text(max_size=5), max_size=4), st.text(max_size=5), st.sampled_from([None, 1, 4]))
def test_edits_mean_what_they_say(items: list[str], new: str, indent: int | None) -> None:
    value = {"a": 1, "k": items, "z": {"y": []}}
    text = json.dumps(value, indent=indent)
    after = with_appended(source(text), "k", new)
    assert json.loads(after.text) == {**value, "k": [*items, new]}
    for index in range(len(items)):
        left = items[:index] + items[index + 1 :]
        assert json.loads(without_item(source(text), "k", index).text) == {**value, "k": left}
