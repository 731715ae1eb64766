"""One kernel map of C-Kernel-Engine as a foreign map: what has a place here is carried over, the rest is listed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kernelmap.errors import Diagnostic
from kernelmap.expressions import SizeExpr
from kernelmap.foreign.fields import Fields
from kernelmap.jsonsource import JsonSource
from kernelmap.models.loading import pointer
from kernelmap.vocabulary import ISA_FEATURES, Phase, Status

ENGINE = "C-Kernel-Engine"
PREFIX = "cke_"
"""Begins every id, op and group made here, so that none coincides with one of this registry by accident."""
_DIM = re.compile(r"^[A-Z][A-Za-z0-9_]{0,31}$")
_PORT = re.compile(r"^[a-z][a-z0-9_]{0,63}$")
_NOT_IDENTIFIER = re.compile(r"[^a-z0-9_]+")
_LONGEST, _LONGEST_POINTER = 150, 200
_ROLES = (("inputs", "input"), ("weights", "weight"), ("outputs", "output"))
_SIZE: TypeAdapter[SizeExpr] = TypeAdapter(SizeExpr)
_ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 4096)


def _plain(feature: str) -> str:
    return re.sub(r"[^a-z0-9]", "", feature.lower())


_FEATURES = {_plain(name): name for name in ISA_FEATURES}
"""Features by their letters and digits: engines differ in dots, dashes and underscores."""


def identifier(word: str) -> str:
    """An id of this registry for another engine's name. Names that differ get ids that differ: what cannot stay as it
    is gets a piece of the name's digest."""
    plain = _NOT_IDENTIFIER.sub("_", word.lower())[:_LONGEST]
    if plain == word:
        return PREFIX + word
    return f"{PREFIX}{plain}_{hashlib.sha256(word.encode('utf-8')).hexdigest()[:6]}"


def has_selection(fields: Fields) -> bool:
    """Whether the map says how it is selected; older vintages do not."""
    return fields.get("selection") is not None


def identity_problems(fields: Fields, source: JsonSource) -> list[Diagnostic]:
    """Without a text for an id and an op there is nothing to name."""
    return [_wrong(fields, source, "a short text", name) for name in ("id", "op") if not _is_text(fields.get(name))]


def selection_problems(fields: Fields, source: JsonSource) -> list[Diagnostic]:
    """Everything in the selection block that is doubtful; a map with doubts is not imported."""
    block = fields.get("selection")
    if not isinstance(block, dict):
        return [_wrong(fields, source, "an object", "selection")]
    found = []
    words = ", ".join(status.value for status in Status)
    if block.get("status") not in [status.value for status in Status]:
        found.append(_wrong(fields, source, f"one of {words}", "selection", "status"))
    priority = block.get("priority")
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= 1_000_000:
        found.append(_wrong(fields, source, "a whole number from 0 to 1000000", "selection", "priority"))
    if not _is_text(block.get("equivalence_group")):
        found.append(_wrong(fields, source, "a short text", "selection", "equivalence_group"))
    phases = block.get("phases")
    known = [phase.value for phase in Phase]
    if not isinstance(phases, list) or not any(phase in known for phase in phases):
        found.append(_wrong(fields, source, f"a list with one of {', '.join(known)}", "selection", "phases"))
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200


def _wrong(fields: Fields, source: JsonSource, expected: str, *path: str) -> Diagnostic:
    name = ".".join(path)
    what = "has an unfit value" if fields.has(*path) else "is missing"
    found = repr(fields.get(*path)) if fields.has(*path) else "nothing"
    place = source.place("".join(f"/{part}" for part in path))
    shown = found if len(found) <= 60 else found[:57] + "..."
    return Diagnostic("KM851", f"{name} {what}", place=place, expected=expected, found=shown)


def foreign_map(fields: Fields, groups: Mapping[str, str]) -> dict[str, Any]:
    """The JSON value of a foreign map (a `KernelMap`), of fields without identity and selection problems.

    ``groups`` gives groups of this registry for foreign ones. What is carried over is noted in ``fields``.
    """
    foreign_id, op = str(fields.text("id")), str(fields.text("op"))
    isa, unknown = _needs(fields, "constraints", "isa")
    dims = _dims(fields)
    group = str(fields.text("selection", "equivalence_group"))
    return {
        "$schema": "kernel_map.schema.json",
        "schema_version": 1,
        "id": identifier(foreign_id),
        "op": identifier(op),
        "summary": f"{ENGINE}'s map {foreign_id}, imported to be compared; it cannot be run here.",
        "selection": _selection(fields, groups.get(group, identifier(group))),
        "requires": {"device": "cpu", "isa": isa},
        "constraints": {"dims": dims},
        "scratch": _scratch(fields),
        "impl": {"backend": "foreign"},
        "foreign": {
            "engine": ENGINE,
            "id": foreign_id,
            "op": op,
            "equivalence_group": group,
            "function": fields.text("impl", "function"),
            "variants": _variants(fields),
            "formats": _formats(fields),
            "ports": _ports(fields),
            "numerical_contract": fields.text("numerical_contract"),
            "unknown_needs": unknown,
            "unread_constraints": _unread(fields),
        },
    }


def _unread(fields: Fields) -> list[str]:
    """Constraints that were not carried over, prose apart: a choice that they may forbid is shown with them."""
    block, left = fields.get("constraints"), fields.left()
    if not block:
        return []
    if not isinstance(block, dict):
        return ["/constraints"]
    whole = "/constraints" in left
    names = [pointer(("constraints", name)) for name in block] if whole else left
    return [
        name[:_LONGEST_POINTER] for name in names if name.startswith("/constraints/") and name != "/constraints/notes"
    ]


def _selection(fields: Fields, group: str) -> dict[str, Any]:
    block = fields.get("selection")
    fields.carry("selection", "status")
    fields.carry("selection", "priority")
    phases: list[str] = []
    known = [phase.value for phase in Phase]
    for index, phase in enumerate(block["phases"]):
        if phase in known:
            fields.carry("selection", "phases", index)
            if phase not in phases:
                phases.append(phase)
    return {
        "status": block["status"], "priority": block["priority"], "equivalence_group": group, "phases": phases,
    }  # fmt: skip


def _needs(fields: Fields, *path: str | int) -> tuple[list[str], list[str]]:
    """ISA features at a path, and needs that this registry has no word for: these count as unmet."""
    found = fields.get(*path)
    if found is None:
        return [], []
    words = [found] if isinstance(found, str) else found
    if not isinstance(words, list) or not all(_is_text(word) for word in words):
        return [], [f"{'.'.join(map(str, path))} is no list of features"]
    fields.carry(*path)
    known = sorted({_FEATURES[_plain(word)] for word in words if _plain(word) in _FEATURES})
    return known, sorted({word for word in words if _plain(word) not in _FEATURES})


def _dims(fields: Fields) -> dict[str, dict[str, int]]:
    dims: dict[str, dict[str, int]] = {}

    def limit(name: Any, bound: str, least: int, *path: str) -> None:
        value = fields.get(*path)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(name, str) and _DIM.match(name) and whole and value >= least:
            dims.setdefault(name, {})[bound] = value
            fields.carry(*path)

    alignment = fields.get("constraints", "alignment")
    for name in alignment if isinstance(alignment, dict) else ():
        limit(name, "multiple_of", 1, "constraints", "alignment", name)
    classes = fields.get("constraints", "shape_classes")
    for name in classes if isinstance(classes, dict) else ():
        for bound in ("min", "max"):
            limit(name, bound, 0, "constraints", "shape_classes", name, bound)
    return dims


def _scratch(fields: Fields) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for index in range(len(fields.items("scratch"))):
        name, size = fields.get("scratch", index, "name"), fields.get("scratch", index, "size_bytes")
        size = str(size) if type(size) is int else size
        if not isinstance(name, str) or not _PORT.match(name) or name in found or not _is_size(size):
            continue
        found[name] = {"name": name, "size_bytes": size}
        fields.carry("scratch", index, "name")
        fields.carry("scratch", index, "size_bytes")
        if (alignment := fields.get("scratch", index, "alignment")) in _ALIGNMENTS and alignment is not True:
            found[name]["alignment"] = alignment
            fields.carry("scratch", index, "alignment")
    return list(found.values())


def _is_size(size: Any) -> bool:
    """Whether a size is an expression of this registry; functions of the other engine have no meaning here."""
    try:
        _SIZE.validate_python(size, strict=True)
    except ValidationError:
        return False
    return True


def _variants(fields: Fields) -> list[dict[str, Any]]:
    """Every variant, also one that cannot be read: it counts as one that never runs, not as none."""
    made = []
    for index in range(len(fields.items("impl", "variants"))):
        path = ("impl", "variants", index)
        isa, unknown = _needs(fields, *path, "requires")
        name = fields.text(*path, "name")
        if name is None:
            name, unknown = f"variant {index}", [*unknown, "the variant has no name"]
        made.append({"name": name, "isa": isa, "unknown_needs": unknown})
    return made


def _formats(fields: Fields) -> dict[str, str]:
    quant = fields.get("quant")
    names = quant if isinstance(quant, dict) else ()
    found = {name: fields.text("quant", name) for name in names if len(name) <= 200}
    return {name: text for name, text in found.items() if text is not None}


def _ports(fields: Fields) -> list[dict[str, Any]]:
    made = []
    for key, role in _ROLES:
        for index in range(len(fields.items(key))):
            shape = fields.get(key, index, "shape")
            names = fields.get(key, index, "name"), fields.get(key, index, "dtype")
            plain = isinstance(shape, list) and all(_is_text(d) or type(d) is int for d in shape)
            if plain and all(map(_is_text, names)):
                for part in ("name", "dtype", "shape"):
                    fields.carry(key, index, part)
                made.append({"role": role, "name": names[0], "dtype": names[1], "shape": [str(d) for d in shape]})
    return made
