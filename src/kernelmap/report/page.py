"""The page: a record, a style sheet and a script in one HTML file that loads nothing and needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from kernelmap import __version__
from kernelmap.audit_text import summary
from kernelmap.models.audit import Audit
from kernelmap.models.report import Report
from kernelmap.report.places import shown
from kernelmap.resolver import STEPS

SCRIPTS = ("dom.js", "record.js", "lists.js", "views.js", "pages.js", "main.js")
"""The parts of the script, in the order in which they run inside one function."""
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def report_value(report: Report) -> dict[str, Any]:
    """The JSON value of a report; what stands at its default is left out, as the schema says."""
    return report.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def report_html(report: Report) -> str:
    """The page of a report: coverage, decisions, groups, maps, claims, findings, and changes if it has a diff."""
    return _page("kernelmap report", report.made_by, report.audit, report_value(report))


def audit_html(audit: Audit) -> str:
    """The page of an audit: coverage, candidates and findings."""
    audit = shown(audit)
    value = audit.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return _page("kernelmap audit", f"kernelmap {__version__}", audit, {"audit": value})


def _page(title: str, made_by: str, audit: Audit, value: Mapping[str, Any]) -> str:
    style, script = _style(), _script()
    return _environment().get_template("page.html").render(
        title=title,
        made_by=made_by,
        summary=summary(audit),
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; "
        "form-action 'none'",
        style=Markup(style),  # our own files, not data
        script=Markup(script),
        phases=[phase.value for phase in STEPS],
        rows=list(_rows(audit)),
        linked="decisions" in value,
        record=json_block(value),
        rules=json_block(_rules(value)),
    )  # fmt: skip


def _rows(audit: Audit) -> Iterator[dict[str, Any]]:
    cells = {(cell.circuit, cell.host, cell.phase): cell for cell in audit.cells}
    for circuit in audit.circuits:
        for host in audit.hosts:
            yield {"circuit": circuit, "host": host, "cells": [cells[circuit, host, phase] for phase in STEPS]}


def _rules(value: Any) -> dict[str, dict[str, str]]:
    """Title, meaning and remedy of every code in the record."""
    from kernelmap.rules import CATALOGUE

    codes = sorted(set(_codes(value)) & CATALOGUE.keys())
    found = {code: CATALOGUE[code] for code in codes}
    return {code: {"title": r.title, "meaning": r.meaning, "remedy": r.remedy} for code, r in found.items()}


def _codes(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("code"), str):
            yield value["code"]
        for item in value.values():
            yield from _codes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _codes(item)


def json_block(value: Any) -> Markup:
    """JSON that may stand inside a ``<script>``: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False)
    for character, escaped in _IN_SCRIPT.items():
        text = text.replace(character, escaped)
    return Markup(text)  # escaped above; autoescape would spoil the quotes


def _environment() -> Environment:
    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=FunctionLoader(_data),
    )  # fmt: skip


def _data(name: str) -> str:
    return (files("kernelmap.report") / "templates" / name).read_text(encoding="utf-8")


def _style() -> str:
    return _data("style.css")


def _script() -> str:
    return '(() => {\n"use strict";\n' + "\n".join(_data(name) for name in SCRIPTS) + "})();\n"


def _hash(text: str) -> str:
    """The source expression with which a content security policy lets one inline element run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
