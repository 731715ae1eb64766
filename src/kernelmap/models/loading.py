"""From JSON source to model: every validation error becomes a placed diagnostic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    "union_tag_invalid": "KM104",
    "union_tag_not_found": "KM101",
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
    path: tuple[str | int, ...]
    union: tuple[str | int, ...] | None
    branch: str
    detail: Mapping[str, Any]


def schema_diagnostics(source: JsonSource, model: type[BaseModel], error: ValidationError) -> list[Diagnostic]:
    """Placed diagnostics of a pydantic error, in the order of the file."""
    found = [_walk(source.value, detail) for detail in error.errors(include_url=False)]
    made = [_diagnostic(source, model, item) for item in _one_branch(found)]
    return sorted(made, key=lambda item: (item.place.line, item.place.column) if item.place else (0, 0))


def _walk(value: Any, detail: Mapping[str, Any]) -> _Found:
    """Splits pydantic's location into the path in the file and the union branch that it tried."""
    path: list[str | int] = []
    union: tuple[str | int, ...] | None = None
    branch = ""
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
        elif union is None:
            union, branch = tuple(path), str(part)
    return _Found(tuple(path), union, branch, detail)


def _one_branch(found: Sequence[_Found]) -> list[_Found]:
    """Of the branches of a union that all failed, keeps the one that went deepest: the one that was meant."""
    kept = [item for item in found if item.union is None]
    groups: dict[tuple[str | int, ...], list[_Found]] = {}
    for item in found:
        if item.union is not None:
            groups.setdefault(item.union, []).append(item)
    for items in groups.values():
        best = max(items, key=lambda item: (len(item.path), -_is_type_error(item.detail["type"])))
        deepest = [item for item in items if item.branch == best.branch]
        kept += deepest
    return kept


def _is_type_error(kind: str) -> bool:
    return kind.endswith(_TYPE_SUFFIXES)


def _diagnostic(source: JsonSource, model: type[BaseModel], item: _Found) -> Diagnostic:
    kind, detail = str(item.detail["type"]), item.detail
    context: Mapping[str, Any] = detail.get("ctx") or {}
    where = pointer(item.path)
    if kind == "missing":
        place = source.place(pointer(item.path[:-1]))
        return Diagnostic("KM101", f"missing field {item.path[-1]!r}", place=place, help=f"add {item.path[-1]!r} here")
    if kind == "extra_forbidden":
        name = str(item.path[-1])
        near = nearest(name, _siblings(model, item.path[:-1]))
        return Diagnostic("KM102", f"unknown field {name!r}", place=source.place(where, key=True), near=near)
    place = source.place(where)
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
