"""Diagnostics as SARIF 2.1.0 (OASIS): one run, a rule for each code that occurs, a result for each diagnostic."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kernelmap import __version__
from kernelmap.errors import Diagnostic, Place, Severity
from kernelmap.models.base import digest
from kernelmap.render import to_json

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def sarif(diagnostics: Sequence[Diagnostic]) -> dict[str, Any]:
    """The SARIF log. Files below the working directory are named relative to ``%SRCROOT%``, others by URI."""
    from kernelmap.rules import CATALOGUE

    codes = sorted({item.code for item in diagnostics})
    here = Path.cwd().resolve()
    files = {item.place.file for item in diagnostics if item.place is not None}
    artifacts = {file: _artifact(file, here) for file in files}
    rules = []
    for code in codes:
        rule = CATALOGUE[code]
        rules.append({
            "id": code,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.meaning},
            "help": {"text": rule.remedy},
        })  # fmt: skip
    driver = {"name": "kernelmap", "version": __version__, "semanticVersion": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The working directory of the run."}}},
        "results": [_result(item, codes.index(item.code), artifacts) for item in diagnostics],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(item: Diagnostic, rule: int, artifacts: Mapping[str, dict[str, str]]) -> dict[str, Any]:
    value = to_json(item)
    details = [value["message"]]
    details += [f"{name}: {value[name]}" for name in ("expected", "found") if value[name]]
    details += [f"near: {', '.join(value['near'])}"] if value["near"] else []
    details += [f"help: {value['help']}"] if value["help"] else []
    result: dict[str, Any] = {
        "ruleId": item.code,
        "ruleIndex": rule,
        "level": _LEVELS[item.severity],
        "message": {"text": "\n".join(details)},
        # Lines move with every edit of a file: what is said, and of which part of the file, is what stays.
        "partialFingerprints": {"kernelmap/v1": digest([item.code, value["message"], value["pointer"]])[7:39]},
        "properties": {"diagnostic": {key: entry for key, entry in value.items() if entry not in (None, [])}},
    }
    if item.place is not None:
        result["locations"] = [_location(item.place, artifacts[item.place.file])]
    return result


def _location(place: Place, artifact: dict[str, str]) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if place.line:
        region: dict[str, Any] = {"startLine": place.line, "startColumn": place.column}
        region["endColumn"] = place.column + max(1, place.width)
        physical["region"] = region
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.pointer:
        location["logicalLocations"] = [{"fullyQualifiedName": place.pointer, "kind": "member"}]
    return location


def _artifact(file: str, here: Path) -> dict[str, str]:
    path = Path(file).resolve()
    if path.is_relative_to(here):
        return {"uri": quote(os.fsencode(path.relative_to(here).as_posix())), "uriBaseId": "%SRCROOT%"}
    return {"uri": "file://" + quote(os.fsencode(path.as_posix()))}
