"""Writes the generated files (JSON Schemas); with --check, fails if any is stale."""

from __future__ import annotations

import sys

from kernelmap.schema_files import stale_schemas, write_schemas


def main() -> int:
    if "--check" in sys.argv[1:]:
        stale = stale_schemas()
        for name in stale:
            print(f"stale: src/kernelmap/schemas/{name}.schema.json (run: make generate)")
        return 1 if stale else 0
    for name in write_schemas():
        print(f"wrote src/kernelmap/schemas/{name}.schema.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
