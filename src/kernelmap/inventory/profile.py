"""Inventory profiles: a model's storage facts as a JSON file, without its bytes."""

from __future__ import annotations

import json
from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.inventory.formats import is_stored_format
from kernelmap.inventory.problems import MAX_REPORTED, shown
from kernelmap.jsonsource import read_json
from kernelmap.models.inventory import Inventory
from kernelmap.models.loading import validate
from kernelmap.vocabulary import FORMATS

_NO_BYTES = {"files", "stamps", "schema_ref"}


def read_profile(path: Path) -> Inventory:
    """The inventory of a JSON profile.

    Raises KernelmapError: KM0xx no JSON, KM1xx schema, KM612 a format that no model file can hold.
    """
    source = read_json(path)
    inventory = validate(source, Inventory)
    problems = []
    for index, item in enumerate(inventory.tensors):
        if not is_stored_format(item.format):
            place = source.place(f"/tensors/{index}/format")
            message = f"tensor {shown(item.name)} has an unknown format {item.format!r}"
            problems.append(Diagnostic("KM612", message, place=place, near=nearest(item.format, FORMATS)))
    if problems:
        raise KernelmapError(problems[:MAX_REPORTED])
    return inventory


def profile_text(inventory: Inventory, source: str = "", *, derived: bool = False) -> str:
    """The JSON text of a profile: what determines selection, one tensor a line, no paths and offsets.

    ``source`` says where the facts come from, ``derived`` that they follow from published dims by rule.
    """
    facts = inventory.model_copy(update={"source": source or inventory.source, "derived": derived or inventory.derived})
    value = facts.model_dump(mode="json", by_alias=True, exclude=_NO_BYTES | {"tensors"}, exclude_defaults=True)
    lines = [
        json.dumps({"name": item.name, "format": item.format, "shape": item.shape} | _size(item.format, item.nbytes))
        for item in inventory.tensors
    ]
    head = json.dumps({"schema_version": 1, **value}, indent=2, allow_nan=False)
    body = ",\n    ".join(lines)
    return head.removesuffix("\n}") + ',\n  "tensors": [' + (f"\n    {body}\n  " if lines else "") + "]\n}\n"


def _size(format_name: str, nbytes: int) -> dict[str, int]:
    """``nbytes`` only where it does not follow from the format."""
    return {} if format_name in FORMATS else {"nbytes": nbytes}
