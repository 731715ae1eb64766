"""Writes the generated files (JSON Schemas, the provider table); with --check, fails if any is stale."""

from __future__ import annotations

import sys
from pathlib import Path

from kernelmap.registry import Registry, load_registry
from kernelmap.schema_files import stale_schemas, write_schemas

TABLE = Path(__file__).parent.parent / "docs" / "providers.md"
HEAD = """# Providers

Generated from the maps by `make generate`; do not edit. Grouped by operation and equivalence group, highest priority
first. All providers of a group compute the same numbers: to the byte, or within the tolerance given.
"""


def provider_table(registry: Registry) -> str:
    """The Markdown of ``docs/providers.md``."""
    parts = [HEAD]
    operations = sorted({contract.op for contract in registry.contracts.values()})
    for op in operations:
        parts.append(f"## {op}\n")
        for group, contract in registry.contracts.items():
            if contract.op != op or not registry.ladders.get(group):
                continue
            rule = contract.equivalence
            exact = "byte-exact" if rule.kind == "byte_exact" else f"rtol {rule.rtol:g}, atol {rule.atol:g}"
            parts.append(f"### `{group}`\n\n{contract.summary} ({exact})\n")
            rows = ["| provider | status | phases | variants |", "|---|---|---|---|"]
            for item in registry.ladders[group]:
                picked = item.selection
                variants = ", ".join(variant.name for variant in item.impl.variants)
                phases = ", ".join(phase.value for phase in picked.phases)
                rows.append(f"| `{item.id}` | {picked.status.value} {picked.priority} | {phases} | {variants} |")
            parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def main() -> int:
    table = provider_table(load_registry())
    stale_table = not TABLE.is_file() or TABLE.read_text(encoding="utf-8") != table
    if "--check" in sys.argv[1:]:
        stale = [f"src/kernelmap/schemas/{name}.schema.json" for name in stale_schemas()]
        stale += ["docs/providers.md"] if stale_table else []
        for name in stale:
            print(f"stale: {name} (run: make generate)")
        return 1 if stale else 0
    for name in write_schemas():
        print(f"wrote src/kernelmap/schemas/{name}.schema.json")
    if stale_table:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(table, encoding="utf-8")
        print("wrote docs/providers.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
