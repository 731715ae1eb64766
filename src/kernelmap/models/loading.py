"""From JSON source to model: every validation error becomes a placed diagnostic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from kernelmap.errors import Diagnostic, KernelmapError, Place, nearest
from kernelmap.jsonsource import JsonSource

M = TypeVar("M", bound=BaseModel)

_CODES = {
    "missing": "KM101",
    "extra_forbidden": "KM102",
    "literal_error": "KM104",
    "enum": "KM104",
    "string_pattern_mismatch": "KM105",
    "too_short": "KM106",
    "too_long": "KM106",
    "string_too_long": "KM106",
    "string_too_short": "KM106",
    "greater_than_equal": "KM106",
    "greater_than": "KM106",
    "less_than_equal": "KM106",
    "less_than": "KM106",
}
_WRONG_TYPE = "KM103"
_RULE_BROKEN = "KM107"
_TYPE_SUFFIXES = ("_type", "_parsing", "from_float", "_attributes_type")


def validate(source: JsonSource, model: type[M]) -> M:
    """The model of a parsed file. Raises KernelmapError with every schema problem, each with its place."""
    try:
        return model.model_validate_json(source.text)
    except ValidationError as error:
        raise KernelmapError(schema_diagnostics(source, model, error)) from None


def pointer(parts: Sequence[str | int]) -> str:
    """RFC 6901 pointer of a path."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


@dataclass(frozen=True, slots=True)
class _Found:
    """One of pydantic's errors: the path in the file, and the union branches that it went through on the way."""

    path: tuple[str | int, ...]
    branches: tuple[tuple[tuple[str | int, ...], str], ...]
    """(path of a union, branch of it that was tried), outermost first."""
    detail: Mapping[str, Any]
    key: bool = False
    """Whether the key itself is wrong, not its value."""

    @property
    def kind(self) -> str:
        """Pydantic's name of the error."""
        return str(self.detail["type"])


def schema_diagnostics(source: JsonSource, model: type[BaseModel], error: ValidationError) -> list[Diagnostic]:
    """Placed diagnostics of a pydantic error, in the order of the file."""
    value = source.value
    found = [_walk(value, detail) for detail in error.errors(include_url=False)]
    made = [_diagnostic(source, model, item) for item in _meant(found) if not _echo(item)]
    return sorted(made, key=lambda item: (item.place.line, item.place.column) if item.place else (0, 0))


def _walk(value: Any, detail: Mapping[str, Any]) -> _Found:
    """Splits pydantic's location into the path in the file and the union branches that it tried."""
    path: list[str | int] = []
    branches: list[tuple[tuple[str | int, ...], str]] = []
    parts = list(detail["loc"])
    for index, part in enumerate(parts):
        last_missing = index == len(parts) - 1 and detail["type"] == "missing"
        if last_missing:
            path.append(part)
        elif (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        ):
            path.append(part)
            value = value[part]
        elif part != "[key]":
            branches.append((tuple(path), str(part)))
    return _Found(tuple(path), tuple(branches), detail, key=bool(parts) and parts[-1] == "[key]")


def _meant(found: Sequence[_Found], depth: int = 0) -> list[_Found]:
    """Of the branches of a union that all failed, keeps the errors of the one that was meant; unions may nest."""
    kept: list[_Found] = []
    unions: dict[tuple[str | int, ...], dict[str, list[_Found]]] = {}
    for item in found:
        if len(item.branches) <= depth:
            kept.append(item)
        else:
            where, branch = item.branches[depth]
            unions.setdefault(where, {}).setdefault(branch, []).append(item)
    for where, branches in unions.items():
        if all(_mistyped(items, where) for items in branches.values()):
            kept.append(_any_type([item for items in branches.values() for item in items]))
        else:
            kept += _meant(min(branches.values(), key=lambda items: _distance(items, where)), depth + 1)
    return kept


def _mistyped(items: Sequence[_Found], where: tuple[str | int, ...]) -> bool:
    """Whether the value is of another type than a union's branch takes."""
    return any(item.path == where and _is_type_error(item.kind) for item in items)


def _distance(items: Sequence[_Found], where: tuple[str | int, ...]) -> tuple[bool, int, int]:
    """How unlike a branch the value is: of another type, with other keys, or wrong only further inside."""
    keys = sum(item.kind in ("missing", "extra_forbidden") for item in items)
    return _mistyped(items, where), keys, -max(len(item.path) for item in items)


def _any_type(items: Sequence[_Found]) -> _Found:
    """One error for a value of a type that no branch of a union takes."""
    expected = " or ".join(dict.fromkeys(_plain(str(item.detail["msg"])) for item in items))
    return replace(items[0], detail={**items[0].detail, "ctx": {"expected": expected}})


def _echo(item: _Found) -> bool:
    """Whether pydantic calls a sequence too short only because it does not count items that were wrong themselves."""
    given = item.detail.get("input")
    return item.kind == "too_short" and isinstance(given, Sized) and len(given) >= item.detail["ctx"]["min_length"]


def _is_type_error(kind: str) -> bool:
    return kind.endswith(_TYPE_SUFFIXES)


def _diagnostic(source: JsonSource, model: type[BaseModel], item: _Found) -> Diagnostic:
    kind, detail = item.kind, item.detail
    context: Mapping[str, Any] = detail.get("ctx") or {}
    where = pointer(item.path)
    if kind == "missing":
        place = source.place(pointer(item.path[:-1]))
        return Diagnostic("KM101", f"missing field {item.path[-1]!r}", place=place, help=f"add {item.path[-1]!r} here")
    if kind == "extra_forbidden":
        name = str(item.path[-1])
        near = nearest(name, _siblings(model, item.path[:-1]))
        return Diagnostic("KM102", f"unknown field {name!r}", place=source.place(where, key=True), near=near)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _tag_problem(source, where, kind, context)
    place = source.place(where, key=item.key)
    shown = _shown(detail.get("input"))
    if "code" in context:  # an ExpressionError
        return Diagnostic(
            str(context["code"]),
            str(detail["msg"]),
            place=_inside(place, int(context.get("offset", 0)), int(context.get("width", 1))),
            help=str(context.get("help", "")),
            near=tuple(context.get("near", ())),
        )
    code = _CODES.get(kind, _WRONG_TYPE if _is_type_error(kind) else _RULE_BROKEN)
    name = where or "the document"
    expected = str(context.get("expected", "")) or _plain(str(detail["msg"]))
    if code == _RULE_BROKEN:
        return Diagnostic(code, f"{name}: {detail['msg']}", place=place, found=shown, help=str(context.get("help", "")))
    near = nearest(str(detail.get("input")), _choices(context)) if code == "KM104" else ()
    titles = {"KM103": "wrong type", "KM104": "value not allowed", "KM105": "badly formed", "KM106": "out of bounds"}
    return Diagnostic(code, f"{name}: {titles[code]}", place=place, expected=expected, found=shown, near=near)


def _tag_problem(source: JsonSource, where: str, kind: str, context: Mapping[str, Any]) -> Diagnostic:
    """The field that says which of several forms an object has is missing, or names none of them."""
    tag = str(context["discriminator"]).strip("'")
    if kind == "union_tag_not_found":
        return Diagnostic("KM101", f"missing field {tag!r}", place=source.place(where), help=f"add {tag!r} here")
    expected, found = str(context["expected_tags"]), str(context["tag"])
    near = nearest(found, _choices({"expected": expected}))
    name, place = f"{where}/{tag}", source.place(f"{where}/{tag}")
    return Diagnostic(
        "KM104", f"{name}: value not allowed", place=place, expected=expected, found=_shown(found), near=near
    )


def _inside(place: Place, offset: int, width: int) -> Place:
    """The place of a part of a JSON string that holds no escapes before it."""
    column = place.column + 1 + offset
    return Place(place.file, place.line, column, place.pointer, place.source_line, max(1, width))


def _plain(message: str) -> str:
    for start in ("Input should be ", "Value should have "):
        message = message.removeprefix(start)
    return message


def _choices(context: Mapping[str, Any]) -> list[str]:
    return [part.strip().strip("'") for part in str(context.get("expected", "")).replace(" or ", ",").split(",")]


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else f"'{value}'"
    return text if len(text) <= 60 else text[:57] + "..."


def _siblings(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Field names of the model at ``path``, as written in files; all of the file's models where that is not clear."""
    names: list[str] = []
    seen: set[type[BaseModel]] = set()
    stack: list[Any] = [model]
    while stack:
        kind = stack.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if kind in seen:
                continue
            seen.add(kind)
            for name, field in kind.model_fields.items():
                if not path or kind is not model:
                    names.append(field.alias or name)
                stack.append(field.annotation)
        else:
            stack.extend(getattr(kind, "__args__", ()))
        if not path and seen:
            break
    return names
