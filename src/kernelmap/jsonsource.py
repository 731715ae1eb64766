"""JSON files with places: parsed by the C ``json`` module, positions found by a second pass when one is asked for."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from kernelmap.errors import Diagnostic, KernelmapError, Place, Severity

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 64
MAX_PROBLEMS = 200
_INT_LIMIT = 2**63
_INT_DIGITS = 19

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null|-?Infinity|NaN")
# A string that never ends is one match up to the end of the text: with a pattern that fails there, every later escaped
# quote starts another scan to the end (16 KB took half a second, growing with the square).
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_BLANK = " \t\r\n"
_CUT_WORD = re.compile(
    r"t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?|Na?|-|-?I(?:n(?:f(?:i(?:n(?:it?)?)?)?)?)?|\.|(?:\.[0-9]+)?[eE][-+]?"
)
"""What the C parser leaves unread of a literal or number that the end of the file cut off."""
_CUT_ESCAPE = re.compile(r"u[0-9a-fA-F]{0,4}")
_JSON_TYPES = {list: "an array", str: "a string", bool: "a truth value", int: "a number", float: "a number"}

Span = tuple[int, int]


@dataclass(frozen=True)
class JsonSource:
    """A checked JSON document: its name (a path as given) and text, its value, and the places of its parts."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def value(self) -> dict[str, Any]:
        """The parsed document. Parsed again when it is asked for, which is only to word a problem: the trees of ten
        thousand files would cost more to keep (in memory, and in every garbage collection) than to make once more."""
        parsed: dict[str, Any] = json.loads(self.text)
        return parsed

    def place(self, pointer: str, *, key: bool = False) -> Place:
        """The place of the value at a JSON pointer, or of its key; of the nearest parent if there is no such value."""
        at = pointer
        while at and at not in self._spans:
            at = at.rpartition("/")[0]
        value_span, key_span = self._spans[at]
        return self._places.at((key_span or value_span) if key else value_span, at)

    def span(self, pointer: str) -> Span:
        """(start, end) of the value at a JSON pointer in the text. Raises KeyError if there is no such value."""
        return self._spans[pointer][0]

    @cached_property
    def _places(self) -> _Places:
        return _Places(self.name, self.text)

    @cached_property
    def _spans(self) -> dict[str, tuple[Span, Span | None]]:
        spans: dict[str, tuple[Span, Span | None]] = {}
        _Scanner(self.text, spans).document()
        return spans


def read_json(path: Path) -> JsonSource:
    """Reads and parses a file. Raises KernelmapError (KM001 to KM012) with every problem and its place."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise KernelmapError(Diagnostic("KM001", f"no such file: {path}", place=Place(str(path)))) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise KernelmapError(Diagnostic("KM002", f"cannot read {path}: {reason}", place=Place(str(path)))) from None
    return parse_json(data, str(path))


def parse_json(data: bytes, name: str) -> JsonSource:
    """Parses a document whose top level is an object. Raises KernelmapError with every problem and its place."""
    text = _decoded(data, name)
    _check_depth(text, name)
    flags = _Flags()
    try:
        value = json.loads(
            text,
            object_pairs_hook=flags.pairs,
            parse_constant=flags.constant,
            parse_int=flags.integer,
            parse_float=flags.real,
        )
    except json.JSONDecodeError as error:
        _syntax_error(text, name, error)
    if flags.raised or _ESCAPED_SURROGATE.search(text):
        problems = _second_look(text, name)
        if problems:
            raise KernelmapError(problems)
    if not isinstance(value, dict):
        start = len(text) - len(text.lstrip(_BLANK))
        place = _Places(name, text).at((start, start + 1), "")
        found = _JSON_TYPES.get(type(value), "null")
        raise KernelmapError(
            Diagnostic("KM010", "the top level is no object", place=place, expected="{…}", found=found)
        )
    return JsonSource(name, text)


class _Flags:
    """Hooks that only note that something is wrong; where, the second pass finds out."""

    def __init__(self) -> None:
        self.raised = False

    def pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            self.raised = True
        return made

    def constant(self, _text: str) -> None:
        self.raised = True

    def integer(self, text: str) -> int:
        if len(text) >= _INT_DIGITS and _too_large(text):
            self.raised = True
            return 0
        return int(text)

    def real(self, text: str) -> float:
        number = float(text)
        if number in (float("inf"), float("-inf")):
            self.raised = True
        return number


def _too_large(text: str) -> bool:
    """Whether an integer literal lies outside 64 bits; does not convert thousands of digits."""
    return len(text) > _INT_DIGITS + 1 or not -_INT_LIMIT <= int(text) < _INT_LIMIT


def _decoded(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        message = f"{name} is larger than {MAX_BYTES // 2**20} MiB"
        raise KernelmapError(Diagnostic("KM003", message, place=Place(name)))
    if data.startswith(b"\xef\xbb\xbf"):
        place = Place(name, 1, 1, "", "", 1)
        raise KernelmapError(
            Diagnostic("KM004", "the file begins with a byte order mark", place=place, help="save it as plain UTF-8")
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise KernelmapError(_undecodable(data, name, error)) from None


def _undecodable(data: bytes, name: str, error: UnicodeDecodeError) -> Diagnostic:
    """The problem at the first bytes that are no text; a character that the end of the file cuts is a truncation."""
    before = data[: error.start].decode("utf-8")
    begin = before.rfind("\n") + 1
    rest = data[error.start :].partition(b"\n")[0].decode("utf-8", "replace")
    source = (before[begin:] + rest).rstrip("\r")
    place = Place(name, before.count("\n") + 1, len(before) - begin + 1, "", source, 1)
    found = " ".join(f"0x{byte:02x}" for byte in data[error.start : error.start + 4])
    if error.reason == "unexpected end of data":
        return Diagnostic("KM008", "the file ends in the middle of a character", place=place, found=found)
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    help = "this looks like UTF-16: save it as UTF-8" if wide else ""
    return Diagnostic("KM005", "invalid UTF-8", place=place, found=found, help=help)


def _check_depth(text: str, name: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRUCTURE.finditer(text):
        mark = match[0]
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                place = _Places(name, text).at(match.span(), "")
                raise KernelmapError(Diagnostic("KM006", f"nested more than {MAX_DEPTH} deep", place=place))
        elif mark in "]}":
            depth -= 1


def _syntax_error(text: str, name: str, error: json.JSONDecodeError) -> NoReturn:
    blank = not text.strip(_BLANK)
    truncated = not blank and _is_cut(text[error.pos :], error.msg)
    at = len(text.rstrip(_BLANK)) if truncated or blank else error.pos
    place = _Places(name, text).at((at, at + 1), "")
    if truncated:
        raise KernelmapError(Diagnostic("KM008", "the file ends in the middle", place=place, help=error.msg)) from None
    message = "the file is empty" if blank else f"not JSON: {error.msg[0].lower()}{error.msg[1:]}"
    raise KernelmapError(Diagnostic("KM007", message, place=place)) from None


def _is_cut(rest: str, message: str) -> bool:
    """Whether some text behind the end of the file could have mended the error: then the file was cut off."""
    if message.startswith("Extra data"):
        return False
    if message.startswith("Unterminated string") or not rest.strip(_BLANK):
        return True
    if message.startswith("Invalid \\uXXXX"):
        return _CUT_ESCAPE.fullmatch(rest) is not None
    return _CUT_WORD.fullmatch(rest) is not None


def _second_look(text: str, name: str) -> list[Diagnostic]:
    scanner = _Scanner(text, None)
    scanner.document()
    places = _Places(name, text)
    made = [
        Diagnostic(code, message, place=places.at(span, at), help=help)
        for code, message, span, at, help in scanner.problems
    ]
    if scanner.unlisted:
        message = f"and {scanner.unlisted} more problems like these"
        made.append(Diagnostic(made[-1].code, message, Severity.NOTE, place=Place(name)))
    return made


class _Places:
    """Places of a text. Lines are cut out once: a file that is one long line may have many problems in it."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self._begins = [0, *(match.end() for match in re.finditer("\n", text))]
        self._lines: dict[int, str] = {}

    def at(self, span: Span, pointer: str) -> Place:
        """The place of a span, underlined as far as its first line goes."""
        start = min(span[0], len(self.text))
        line = bisect_right(self._begins, start)
        begin, source = self._begins[line - 1], self._line(line)
        width = max(1, min(span[1], begin + len(source)) - start)
        return Place(self.name, line, start - begin + 1, pointer, source, width)

    def _line(self, line: int) -> str:
        if line not in self._lines:
            end = self._begins[line] - 1 if line < len(self._begins) else len(self.text)
            self._lines[line] = self.text[self._begins[line - 1] : end].rstrip("\r")
        return self._lines[line]


class _Scanner:
    """Walks a document that the C parser accepted; notes problems and, in ``spans``, the span of every value and key.

    ``spans`` is None where only problems are wanted, so that a hostile file costs no memory for each of its values.
    """

    def __init__(self, text: str, spans: dict[str, tuple[Span, Span | None]] | None) -> None:
        self.text, self.spans = text, spans
        self.problems: list[tuple[str, str, Span, str, str]] = []
        self.unlisted = 0

    def document(self) -> None:
        self._value(self._space(0), "", None)

    def _space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def _value(self, at: int, pointer: str, key: Span | None) -> int:
        mark = self.text[at : at + 1]
        if mark == "{":
            end = self._object(at, pointer)
        elif mark == "[":
            end = self._array(at, pointer)
        elif mark == '"':
            end = self._string(at, pointer)
        else:
            end = self._scalar(at, pointer)
        if self.spans is not None:
            self.spans[pointer] = ((at, end), key)
        return end

    def _problem(self, code: str, message: str, span: Span, pointer: str, help: str = "") -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append((code, message, span, pointer, help))
        else:
            self.unlisted += 1

    def _object(self, at: int, pointer: str) -> int:
        at = self._space(at + 1)
        first: dict[str, int] = {}
        while self.text[at : at + 1] != "}":
            end = self._string(at, pointer)
            key, span = json.loads(self.text[at:end]), (at, end)
            if key in first:
                line = self.text.count("\n", 0, first[key]) + 1 if len(self.problems) < MAX_PROBLEMS else 0
                self._problem("KM009", f"duplicate key {key!r}", span, pointer, f"the first is in line {line}")
            first.setdefault(key, at)
            at = self._space(self._space(end) + 1)  # behind the colon
            child = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            at = self._space(self._value(at, child, span))
            if self.text[at : at + 1] == ",":
                at = self._space(at + 1)
        return at + 1

    def _array(self, at: int, pointer: str) -> int:
        at, index = self._space(at + 1), 0
        while self.text[at : at + 1] != "]":
            at = self._space(self._value(at, f"{pointer}/{index}", None))
            index += 1
            if self.text[at : at + 1] == ",":
                at = self._space(at + 1)
        return at + 1

    def _string(self, at: int, pointer: str) -> int:
        match = _STRING.match(self.text, at)
        end = match.end() if match else at + 1
        if match and "\\u" in match[0] and _SURROGATE.search(json.loads(match[0])):
            self._problem("KM012", "a lone surrogate is no character", (at, end), pointer)
        return end

    def _scalar(self, at: int, pointer: str) -> int:
        match = _SCALAR.match(self.text, at)
        if match is None:
            return at + 1
        word, span = match[0], match.span()
        if word.endswith(("Infinity", "NaN")):
            self._problem("KM011", f"{word} is no JSON number", span, pointer, "write null, or leave it out")
        elif word[-1].isdigit():
            whole = not set(word) & set(".eE")
            if _too_large(word) if whole and len(word) >= _INT_DIGITS else abs(float(word)) == float("inf"):
                self._problem("KM011", "the number is out of range", span, pointer, "64-bit integers, finite floats")
        return match.end()
