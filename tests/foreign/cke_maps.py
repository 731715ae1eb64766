"""Maps in the shapes that C-Kernel-Engine's have had, made up here: a newer vintage, and an older without selection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FIXTURES = Path(__file__).parents[1] / "data" / "cke"


def newer(name: str, **changes: Any) -> Json:
    """A map with a selection block. ``status``, ``priority``, ``group`` and ``phases`` go into it."""
    selection = {
        "status": changes.pop("status", "production"),
        "priority": changes.pop("priority", 100),
        "equivalence_group": changes.pop("group", "some_group"),
        "phases": changes.pop("phases", ["prefill", "decode"]),
    }
    return {
        "id": name,
        "op": "gemm",
        "selection": selection,
        "quant": {"weight": "q4_k", "output": "fp32"},
        "inputs": [{"name": "a", "dtype": "fp32", "shape": ["M", "K"], "layout": "dense"}],
        "constraints": {"alignment": {"K": 256}},
        "impl": {"function": name},
        "call_abi": {"version": 1},
        **changes,
    }


def older(name: str) -> Json:
    """A map without a selection block."""
    return {"id": name, "op": "gemv", "quant": {"weight": "q8_0"}, "impl": {"function": name}, "notes": "older"}


def write(folder: Path, **maps: Any) -> Path:
    """Writes ``<name>.json`` for each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in maps.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder
