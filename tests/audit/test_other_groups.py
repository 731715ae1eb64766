"""Why not a provider of another group: the storage or option that would make the op ask for it, and the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox import Box, contract, kernel_map, world, write

from kernelmap.cli.main import run


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """Two more groups, of other storage; ops whose group follows from storage and an option."""
    with world(tmp_path) as made:
        for name in ("q8_0", "q4_k", "slow"):
            value = contract() | {"equivalence_group": f"toybox_{'fp32_slow' if name == 'slow' else name}"}
            value["weights"][0]["dtype"] = "fp32" if name == "slow" else name
            write(made.maps / "contracts" / f"{value['equivalence_group']}.json", value)
            item = kernel_map(name, 100, "candidate" if name == "q8_0" else "production")
            item["selection"]["equivalence_group"] = value["equivalence_group"]
            item["impl"]["function"] = "toybox.plain:matmul"
            write(made.map(name), item)
        made.edit(made.circuit, retarget)
        yield made


def retarget(value: dict[str, Any]) -> None:
    value["options"] = {"mode": {"choices": ["toybox", "toybox_other"], "default": "toybox"}}
    for op in value["blocks"]["main"]["ops"]:
        op["equivalence_group"] = "{mode}_{weight}"


def why_not(box: Box, capsys: pytest.CaptureFixture[str], name: str) -> tuple[int, str]:
    arguments = ["explain", str(box.circuit), "op0", "--phase", "decode", *box.flags, "--host", str(box.host)]
    capsys.readouterr()
    code = run([*arguments, "--why-not", f"toybox_{name}", "--format", "json"])
    return code, "\n".join(item["help"] for item in json.loads(capsys.readouterr().out)["diagnostics"])


def selected(box: Box, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    capsys.readouterr()
    arguments = [str(box.circuit), *box.flags, "--host", str(box.host), "--phase", "decode", *flags]
    assert run(["resolve", *arguments, "--format", "json"]) == 0
    found: str = json.loads(capsys.readouterr().out)["decisions"][0]["provider"]
    return found


def test_storage_that_would_make_the_op_ask_for_it(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, help = why_not(box, capsys, "q8_0")
    assert code == 1
    assert "op0 asks for toybox_fp32; another group is never looked at" in help
    assert "decode: selected if weight was stored as q8_0 and a route allowed it" in help
    box.edit(box.circuit, lambda v: [t.update(format="q8_0") for t in v["storage"]["tensors"]])
    assert selected(box, capsys, "--route", "op0=toybox_q8_0", "--route", "op1=toybox_q8_0") == "toybox_q8_0"


def test_dims_that_the_other_storage_needs(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    _, help = why_not(box, capsys, "q4_k")
    assert "decode: selected if weight was stored as q4_k and H % 256 == 0" in help
    box.edit(box.circuit, lambda v: [t.update(format="q4_k") for t in v["storage"]["tensors"]])
    box.edit(box.circuit, lambda v: v["dims"].update(H=256))
    assert selected(box, capsys) == "toybox_q4_k"


def test_a_group_that_no_storage_leads_to(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, help = why_not(box, capsys, "slow")
    assert code == 1
    assert "other storage formats or options would not make it ask for that group" in help


def test_an_option_that_would_make_the_op_ask_for_it(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    value = contract() | {"equivalence_group": "toybox_other_fp32"}
    write(box.maps / "contracts" / "toybox_other_fp32.json", value)
    item = kernel_map("other", 100)
    item["selection"]["equivalence_group"] = "toybox_other_fp32"
    write(box.map("other"), item)
    _, help = why_not(box, capsys, "other")
    assert "decode: selected with: --option mode=toybox_other" in help
    assert selected(box, capsys, "--option", "mode=toybox_other") == "toybox_other"
