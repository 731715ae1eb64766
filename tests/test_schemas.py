"""Shipped data against the generated schemas, as an outsider with `jsonschema` would check it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kernelmap.circuit.loading import read_circuit
from kernelmap.circuit.storage import reference_inventory
from kernelmap.host import load_host, profile_names
from kernelmap.jsonsource import read_json
from kernelmap.models.loading import validate
from kernelmap.models.plan import Plan
from kernelmap.registry import load_registry
from kernelmap.resolver import resolve
from kernelmap.schema_files import SCHEMAS, schema_path, schema_text, stale_schemas

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "kernel_map": ROOT / "kernel_maps",
    "contract": ROOT / "kernel_maps" / "contracts",
    "evidence": ROOT / "kernel_maps" / "evidence",
    "bench": ROOT / "kernel_maps" / "benchmarks",
    "circuit": ROOT / "circuits",
    "host": ROOT / "src/kernelmap/host/profiles",
}


def shipped() -> Iterator[Any]:
    for kind, folder in FOLDERS.items():
        for path in sorted(folder.glob("*.json")):
            yield pytest.param(kind, path, id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize(("kind", "path"), list(shipped()))
def test_shipped_file_fits_its_schema(kind: str, path: Path) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    assert next(iter(value)) == "$schema", "$schema stands first, so that editors find it"
    assert (path.parent / value["$schema"]).resolve() == schema_path(kind).resolve()
    schema = json.loads(schema_path(kind).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(value)
    validate(read_json(path), SCHEMAS[kind])


def test_generated_schemas_are_up_to_date() -> None:
    assert stale_schemas() == []


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schema_is_valid_and_closed(name: str) -> None:
    schema = json.loads(schema_text(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:kernelmap:schema:{name}:1"
    assert schema["additionalProperties"] is False
    for definition in schema.get("$defs", {}).values():
        if definition.get("type") == "object":
            assert definition["additionalProperties"] is False


def test_an_outsider_finds_what_we_find() -> None:
    """The schema alone refuses a misspelt field and a wrong status."""
    value = json.loads((ROOT / "kernel_maps/gemm_nt_fp32.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(json.loads(schema_text("kernel_map")))
    assert validator.is_valid(value)
    assert not validator.is_valid({**value, "scrach": []})
    assert not validator.is_valid({**value, "selection": {**value["selection"], "status": "produktion"}})
    assert not validator.is_valid({key: item for key, item in value.items() if key != "schema_version"})


def test_plans_and_inventories_fit_their_schemas() -> None:
    circuit = read_circuit("qwen35_moe")
    inventory = reference_inventory(circuit.circuit, circuit.source)
    value = json.loads(inventory.model_dump_json(by_alias=True, exclude_defaults=True))
    jsonschema.validate(value | {"schema_version": 1}, json.loads(schema_text("inventory")))
    registry = load_registry()
    for name in profile_names():
        plan = resolve(circuit.circuit, circuit.source, inventory, registry, load_host(name))
        written = json.loads(plan.model_dump_json(by_alias=True))
        jsonschema.validate(written, json.loads(schema_text("plan")))
        again = Plan.model_validate_json(json.dumps(written))
        assert again.digest == plan.digest and again.canonical() == plan.canonical()
