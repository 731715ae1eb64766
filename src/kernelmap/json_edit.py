"""Edits of a JSON text in place: what is not edited stays as it was, byte for byte."""

from __future__ import annotations

import json
from typing import Any

from kernelmap.jsonsource import JsonSource, parse_json


def with_value(source: JsonSource, pointer: str, value: Any) -> JsonSource:
    """The document with another value at a pointer. Raises KeyError if there is no value there."""
    start, end = source.span(pointer)
    return _spliced(source, start, end, _json(value))


def with_appended(source: JsonSource, key: str, item: Any) -> JsonSource:
    """The document with an item at the end of a top-level array, which is made, at the end of the document, if missing.

    A new item is set apart as the one before it is; a new array is written as the document writes its values.
    """
    array = source.value.get(key)
    if array:
        last = source.span(f"/{key}/{len(array) - 1}")
        before = source.span(f"/{key}/{len(array) - 2}")[1] if len(array) > 1 else source.span(f"/{key}")[0]
        gap = source.text[before : last[0]].lstrip(",[")
        return _spliced(source, last[1], last[1], f",{gap}{_json(item)}")
    indent = _indent(source)
    inner = f"[\n{indent * 2}{_json(item)}\n{indent}]" if indent else f"[{_json(item)}]"
    if array is not None:
        return _spliced(source, *source.span(f"/{key}"), inner)
    end = max(source.span(f"/{name}")[1] for name in map(_escaped, source.value))
    gap = f",\n{indent}" if indent else ", "
    return _spliced(source, end, end, f"{gap}{_json(key)}: {inner}")


def without_item(source: JsonSource, key: str, index: int) -> JsonSource:
    """The document without an item of a top-level array. Raises KeyError if there is no such item."""
    count = len(source.value[key])
    start, end = source.span(f"/{key}/{index}")
    if count == 1:
        return _spliced(source, *source.span(f"/{key}"), "[]")
    if index + 1 < count:
        return _spliced(source, start, source.span(f"/{key}/{index + 1}")[0], "")
    return _spliced(source, source.span(f"/{key}/{index - 1}")[1], end, "")


def _spliced(source: JsonSource, start: int, end: int, text: str) -> JsonSource:
    return parse_json((source.text[:start] + text + source.text[end:]).encode("utf-8"), source.name)


def _indent(source: JsonSource) -> str:
    """White space before the keys of the document; empty if they do not stand on lines of their own."""
    starts = [source.span(f"/{name}")[0] for name in map(_escaped, source.value)]
    line = source.text[: min(starts)].rpartition("\n")[2] if starts and "\n" in source.text[: min(starts)] else ""
    return line[: len(line) - len(line.lstrip(" \t"))]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
