"""The JSON reader: every problem is placed, and places point at what they name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmap.errors import KernelmapError
from kernelmap.jsonsource import MAX_BYTES, MAX_PROBLEMS, parse_json, read_json


def problems(data: bytes) -> list[tuple[str, int, int]]:
    with pytest.raises(KernelmapError) as caught:
        parse_json(data, "f.json")
    return [(d.code, d.place.line, d.place.column) for d in caught.value.diagnostics if d.place is not None]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", [("KM007", 1, 1)]),
        (b"  \n ", [("KM007", 1, 1)]),
        (b"\xef\xbb\xbf{}", [("KM004", 1, 1)]),
        (b'{"a": "\xff"}', [("KM005", 1, 8)]),
        (b'{\n"a": 1,\n"\xc3\xa9": \x80}', [("KM005", 3, 6)]),
        (b"[1]", [("KM010", 1, 1)]),
        (b"3", [("KM010", 1, 1)]),
        (b'{"a" 1}', [("KM007", 1, 6)]),
        (b'{"a": [1, 2', [("KM008", 1, 12)]),
        (b'{"a": "tru', [("KM008", 1, 11)]),
        (b'{"a": "\xc3', [("KM008", 1, 8)]),
        (b'{"a": tru}', [("KM007", 1, 7)]),
        (b'{"a": "\\u12"}', [("KM007", 1, 9)]),
        (b"{}\x0c", [("KM007", 1, 3)]),
        (b"{} \xc2\xa0", [("KM007", 1, 4)]),
        (b"\n [1]", [("KM010", 2, 2)]),
        (b'{"a": 1, "a": 2}', [("KM009", 1, 10)]),
        (
            b'{"a": 1,\n "a": 2,\n "b": NaN,\n "c": [1e999, -Infinity]}',
            [("KM009", 2, 2), ("KM011", 3, 7), ("KM011", 4, 8), ("KM011", 4, 15)],
        ),
        (b'{"a": 9223372036854775807}', []),
        (b'{"a": 9223372036854775808}', [("KM011", 1, 7)]),
        (b'{"a": -9223372036854775809}', [("KM011", 1, 7)]),
        (b'{"a": ' + b"9" * 5000 + b"}", [("KM011", 1, 7)]),
        (b'{"a": "\\ud800"}', [("KM012", 1, 7)]),
        (b'{"a":' * 64 + b"1" + b"}" * 64, []),
        (b'{"a":' * 65 + b"1" + b"}" * 65, [("KM006", 1, 321)]),
        (b"[" * 100_000, [("KM006", 1, 65)]),
    ],
)  # fmt: skip
def test_each_problem_has_its_place(data: bytes, expected: list[tuple[str, int, int]]) -> None:
    if expected:
        assert problems(data) == expected
    else:
        parse_json(data, "f.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none.json", "KM001"), (tmp_path, "KM002"), (Path("bad\0name"), "KM002")):
        with pytest.raises(KernelmapError) as caught:
            read_json(path)
        assert caught.value.diagnostics[0].code == code


def test_a_huge_file_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES * 50)
    with pytest.raises(KernelmapError) as caught:
        read_json(path)
    assert caught.value.diagnostics[0].code == "KM003"


@pytest.mark.parametrize(
    "document",
    [
        b'{"a": [1.5, true, false, null, -2.5e-5, 0], "b": {"c": "d\\\\"}}',
        b'{"\xc3\xa9": "\\u00e9\\n\\ud83d\\ude00",\n\t"x": [{}, [], "\xf0\x9f\x98\x80"]}',
        b'{"a": NaN, "b": -Infinity, "c": Infinity}',
    ],
)
def test_every_cut_of_a_document_is_called_a_truncation(document: bytes) -> None:
    for length in range(1, len(document)):
        (problem,) = problems(document[:length])
        assert problem[0] == "KM008", document[:length]


def test_utf16_is_recognised() -> None:
    with pytest.raises(KernelmapError) as caught:
        parse_json("{}".encode("utf-16"), "f")
    assert caught.value.diagnostics[0].code == "KM005" and "UTF-16" in caught.value.diagnostics[0].help


def test_hostile_files_cost_no_more_than_their_length() -> None:
    """Each took a time (or memory for source lines) that grew with the square of the length."""
    begin = time.perf_counter()
    unterminated = b'{"a":' + b"[" * 70 + b'"' + b'\\"' * 500_000
    assert problems(unterminated)[0][0] == "KM006"
    assert problems(b'{"a": [' + b"[]," * 70 + b'"' + b'\\"' * 500_000)[0][0] == "KM008"
    with pytest.raises(KernelmapError) as caught:
        parse_json(b'{"a": [' + b"NaN," * 100_000 + b"1]}", "f")
    assert time.perf_counter() - begin < 10
    found = caught.value.diagnostics
    assert (
        len(found) == MAX_PROBLEMS + 1 and found[-1].message == f"and {100_000 - MAX_PROBLEMS} more problems like these"
    )
    assert len({id(item.place.source_line) for item in found[:-1] if item.place}) == 1


KEYS = st.text(max_size=6)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def pointers(value: Any, at: str = "") -> list[tuple[str, Any]]:
    found = [(at, value)]
    if isinstance(value, dict):
        for key, item in value.items():
            found += pointers(item, f"{at}/{key.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += pointers(item, f"{at}/{index}")
    return found


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from([None, 1, 2]))
def test_a_place_points_at_its_value(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        source = parse_json(text.encode("utf-8"), "x")
    except UnicodeEncodeError:
        return  # a lone surrogate cannot be written as UTF-8
    lines = text.split("\n")
    for where, expected in pointers(value):
        place = source.place(where)
        offset = sum(len(line) + 1 for line in lines[: place.line - 1]) + place.column - 1
        found, _ = json.JSONDecoder().raw_decode(text, offset)
        assert found == expected and place.pointer == where
        assert place.source_line == lines[place.line - 1].rstrip("\r")


@settings(max_examples=300)
@given(
    st.binary(max_size=60) | st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\\n\u0000', max_size=40).map(str.encode)
)
def test_nothing_but_diagnostics_comes_out(data: bytes) -> None:
    try:
        source = parse_json(data, "x")
    except KernelmapError as error:
        assert all(item.code.startswith("KM0") for item in error.diagnostics)
        return
    assert source.value == json.loads(data)
