"""JSON Schemas (2020-12) of every file format, generated from the models; files in ``kernelmap.schemas``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from kernelmap.models.audit import Audit
from kernelmap.models.bench import BenchRecord
from kernelmap.models.circuit import Circuit
from kernelmap.models.contract import Contract
from kernelmap.models.diff import Diff
from kernelmap.models.evidence import Evidence
from kernelmap.models.foreign_report import ForeignAudit, ForeignImport
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.lock import Lock
from kernelmap.models.plan import Plan
from kernelmap.models.policy import Policy
from kernelmap.models.report import Report
from kernelmap.models.tracing import Bisection, Capture, ShadowEvidence

SCHEMAS: Mapping[str, type[BaseModel]] = {
    "audit": Audit,
    "bench": BenchRecord,
    "bisection": Bisection,
    "capture": Capture,
    "circuit": Circuit,
    "contract": Contract,
    "diff": Diff,
    "evidence": Evidence,
    "foreign_audit": ForeignAudit,
    "foreign_import": ForeignImport,
    "host": Host,
    "inventory": Inventory,
    "kernel_map": KernelMap,
    "lock": Lock,
    "plan": Plan,
    "policy": Policy,
    "shadow": ShadowEvidence,
    "report": Report,
}
FOLDER = Path(__file__).parent / "schemas"


def schema_text(name: str) -> str:
    """The schema file's text, generated anew from the model."""
    made = SCHEMAS[name].model_json_schema(by_alias=True, mode="validation")
    head = {"$schema": GenerateJsonSchema.schema_dialect, "$id": f"urn:kernelmap:schema:{name}:1"}
    return json.dumps({**head, **made}, indent=2, sort_keys=False, ensure_ascii=False) + "\n"


def schema_path(name: str) -> Path:
    """Where the generated file lies."""
    return FOLDER / f"{name}.schema.json"


def stale_schemas() -> list[str]:
    """Names of schema files that differ from what the models give."""
    return [
        name
        for name in SCHEMAS
        if not schema_path(name).is_file() or schema_path(name).read_text(encoding="utf-8") != schema_text(name)
    ]


def write_schemas() -> list[str]:
    """Writes every stale schema file and returns their names."""
    stale = stale_schemas()
    for name in stale:
        schema_path(name).write_text(schema_text(name), encoding="utf-8")
    return stale
