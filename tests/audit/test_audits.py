"""Audits: coverage, what never runs, what candidates lack, what is not proved; one record in every format."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sandbox import GROUP, WIDE, Box, kernel_map, world, write

from kernelmap.cli.main import run
from kernelmap.models.audit import Audit
from kernelmap.report.places import shown
from kernelmap.schema_files import schema_text

SARIF = Path(__file__).parents[1] / "data" / "sarif-schema-2.1.0.json"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path) as made:
        yield made


def audit(box: Box, capsys: pytest.CaptureFixture[str], *flags: str, hosts: str = "") -> tuple[int, Audit]:
    capsys.readouterr()
    given = [str(box.circuit), *box.flags, "--hosts", hosts or str(box.host), *flags, "--format", "json"]
    code = run(["audit", *given])
    text = capsys.readouterr().out
    jsonschema.validate(json.loads(text), json.loads(schema_text("audit")))
    return code, Audit.model_validate_json(text)


def said(found: Audit, code: str) -> list[str]:
    return [item.message for item in found.findings if item.code == code]


def test_the_matrix_of_a_covered_circuit(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audit(box, capsys, hosts=f"{box.host},neoverse_v2_server")
    assert code == 0 and (found.circuits, found.hosts) == (("toybox",), ("toybox_host", "neoverse_v2_server"))
    cells = {(cell.host, cell.phase.value): cell.text for cell in found.cells}
    assert cells == {
        (host, phase): "-" if phase == "init" else "2/2"
        for host in found.hosts
        for phase in ("init", "prefill", "decode")
    }
    assert not said(found, "KM841") and not said(found, "KM842")


def test_holes_are_errors_with_the_reasons_of_every_map(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("fast", "plain"):
        box.edit(box.map(name), lambda v: v.update(requires={"isa": ["avx2"]}))
    code, found = audit(box, capsys, hosts=f"{box.host},neoverse_v2_server,avx2_2core")
    assert code == 1
    holes = [item for item in found.findings if item.code == "KM841"]
    assert [item.message for item in holes] == [
        f"toybox: {op} ({phase}, layers 0-2): no provider of {GROUP} on neoverse_v2_server"
        for phase in ("prefill", "decode")
        for op in ("op0", "op1")
    ]
    first = holes[0]
    assert first.file == str(box.circuit) and first.pointer == "/blocks/main/ops/0" and first.line
    assert "toybox_fast: KM405 host lacks avx2" in str(first.help)
    cells = {cell.host: (cell.holes, cell.text) for cell in found.cells if cell.phase == "decode"}
    assert cells["neoverse_v2_server"] == (("op0", "op1"), "0/2") and cells["avx2_2core"] == ((), "2/2")


def test_single_providers_and_a_deny(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = audit(box, capsys, "--exclude", "toybox_fast")
    assert {cell.single for cell in found.cells} == {(), ("op0", "op1")}
    assert all("nothing but toybox_plain on toybox_host" in message for message in said(found, "KM842"))
    assert len(said(found, "KM842")) == 4
    assert audit(box, capsys, "--exclude", "toybox_fast", "--exclude", "toybox_plain")[0] == 1


def test_dominated_and_dead_maps(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = audit(box, capsys)
    assert said(found, "KM843") == ["toybox_plain is outranked wherever it is eligible"]
    box.edit(box.map("plain"), lambda v: v.update(requires={"isa": ["avx512f"]}))
    _, found = audit(box, capsys)
    assert said(found, "KM843") == []
    assert said(found, "KM844") == ["toybox_plain is eligible in no audited circuit, phase and host"]
    _, found = audit(box, capsys, hosts=f"{box.host},avx512_vnni_server")
    assert said(found, "KM843") == ["toybox_plain is outranked wherever it is eligible"]
    box.edit(box.map("fast"), lambda v: v["selection"].update(phases=["prefill"]))
    _, found = audit(box, capsys, hosts=f"{box.host},avx512_vnni_server")
    assert said(found, "KM843") == said(found, "KM844") == [], "it runs in decode now"


def test_maps_that_no_circuit_asks_for_are_judged_in_a_whole_audit(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not any("gemm" in item.message for item in audit(box, capsys)[1].findings)
    capsys.readouterr()
    run(["audit", *box.flags, "--hosts", "avx2_2core", "--format", "json"])
    found = Audit.model_validate_json(capsys.readouterr().out)
    assert f"toybox_fast: no audited circuit asks for {GROUP}" in said(found, "KM844")


def test_candidates_lack_what_explain_says(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.edit(box.map("risky"), lambda v: v.update(requires={"isa": ["avx512f"]}))
    _, found = audit(box, capsys, hosts=f"{box.host},avx512_vnni_server")
    lacks = {(c.phase.value, c.hosts): (c.ops, [r.code for r in c.reasons], c.flip) for c in found.candidates}
    both = ("op0", "op1")
    assert lacks["decode", ("toybox_host",)] == (
        both, ["KM401", "KM405"], "selected if a route allowed it and host had avx512f"
    )  # fmt: skip
    assert lacks["decode", ("avx512_vnni_server",)] == (
        both, ["KM401"], "selected with: --route op0:decode=toybox_risky"
    )  # fmt: skip
    for host, code in (("avx512_vnni_server", 0), (str(box.host), 1)):
        arguments = ["explain", str(box.circuit), "op0", "--phase", "decode", *box.flags, "--host", host]
        capsys.readouterr()
        assert run([*arguments, "--why-not", "toybox_risky", "--format", "json"]) == 0
        told = json.loads(capsys.readouterr().out)["explanations"][0]["flips"]["toybox_risky"]["text"]
        assert told in {c.flip for c in found.candidates}
        pinned = ["--route", "op0:decode=toybox_risky", "--pin", "op0:decode=toybox_risky"]
        assert run(["resolve", str(box.circuit), *box.flags, "--host", host, *pinned]) == code


def test_claims_without_evidence(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"text": "2x", "host": "here", "shape": "R = 8", "comparable": True}
    claims = [{"text": "3x", "source": "paper"}, {"text": "2x", "source": "paper", "reproduced": measured}]
    box.edit(box.map("fast"), lambda v: v.update(claims=claims))
    _, found = audit(box, capsys)
    assert said(found, "KM846") == ["toybox_fast claims '3x' (paper), and nothing was measured here"]


@pytest.mark.parametrize(
    ("changes", "unreached"),
    [
        ({}, []),
        ({"shape_constraints": {"R_min": 64}}, []),
        ({"shape_constraints": {"R_min": 65}}, ["wide"]),
        ({"shape_constraints": {"H_min": 65}}, ["wide"]),
        ({"shape_constraints": {"H_max": 64, "R_max": 1}}, []),
        ({"shape_constraints": {"R_max": 0}}, ["wide"]),
        ({"requires": ["avx512f"]}, ["wide"]),
    ],
)
def test_variants_that_no_shape_reaches(
    box: Box, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], unreached: list[str]
) -> None:
    wide = {**WIDE, **changes}
    box.edit(box.map("fast"), lambda v: v["impl"].update(variants=[wide, {"name": "serial"}]))
    _, found = audit(box, capsys)
    wanted = [f"toybox_fast: no audited shape and host reaches variant {name}" for name in unreached]
    assert said(found, "KM847") == wanted


def test_every_shipped_variant_is_within_reach(capsys: pytest.CaptureFixture[str]) -> None:
    """In the maps of groups that an audited circuit asks for; no guard lies beyond a map's own phases."""
    run(["audit", "--format", "json"])
    found = Audit.model_validate_json(capsys.readouterr().out)
    assert said(found, "KM847") == []


def test_production_without_evidence_is_an_error_under_strict(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audit(box, capsys)
    unproved = [item for item in found.findings if item.code == "KM848"]
    assert code == 0 and {item.severity for item in unproved} == {"warning"}
    assert [item.message for item in unproved] == [
        f"toybox_{name} is in production: no evidence" for name in ("fast", "plain")
    ]
    code, found = audit(box, capsys, "--strict")
    assert code == 1 and {item.severity for item in found.findings if item.code == "KM848"} == {"error"}


def proof(box: Box, name: str) -> dict[str, Any]:
    from sandbox import forget

    from kernelmap.registry import load_registry
    from kernelmap.source_digests import installed_sources, map_source_digest

    forget()
    registry = load_registry((box.maps,), shipped=False)
    item = registry.maps[f"toybox_{name}"]
    return {
        "schema_version": 1, "provider": item.id, "contract_digest": registry.contracts[GROUP].digest,
        "map_digest": item.proved_digest, "source_digest": map_source_digest(item),
        "reference_digest": installed_sources().oracle_digest(registry.contracts[GROUP]), "corpus_digest": "sha256:0",
        "host": "here", "isa_paths": ["portable"], "toolchain": {"python": "3"}, "cases": 1, "worst_error": 0.0,
        "seconds": 1.0, "result": "pass",
    }  # fmt: skip


def test_evidence_is_stale_by_contract_map_and_source(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    from sandbox import forget

    for name in ("fast", "plain"):
        write(box.maps / "evidence" / f"toybox_{name}.json", proof(box, name))
    box.map("plain").write_text(box.map("plain").read_text().replace('"priority": 100', '"priority": 101'))
    (box.site / "helper.py").write_text("X = 1\n")
    forget()
    _, found = audit(box, capsys)
    assert said(found, "KM848") == [
        "toybox_fast is in production: the source changed", "toybox_plain is in production: the map changed"
    ]  # fmt: skip
    box.edit(box.contract, lambda v: v["arithmetic"].update(accumulator="fp64"))
    _, found = audit(box, capsys)
    assert all("the contract changed" in message for message in said(found, "KM848"))


def test_a_circuit_that_does_not_elaborate(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.edit(box.contract, lambda v: v["weights"][0].update(dtype="q4_k"))
    code, found = audit(box, capsys)
    assert code == 1 and {cell.text for cell in found.cells} == {"error"}
    assert any(item.severity == "error" and item.code.startswith("KM3") for item in found.findings)


def test_a_policy_that_names_nothing_is_an_error(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audit(box, capsys, "--exclude", "toybox_fasst")
    assert code == 1 and len(said(found, "KM457")) == 1


def test_one_record_in_every_format(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.edit(box.map("fast"), lambda v: v.update(claims=[{"text": "3x", "source": "paper"}]))
    _, found = audit(box, capsys, "--exclude", "toybox_plain")
    flags = ["audit", str(box.circuit), *box.flags, "--hosts", str(box.host), "--exclude", "toybox_plain"]
    out: dict[str, str] = {}
    for name in ("text", "md", "sarif", "html"):
        assert run([*flags, "--format", name]) == 0
        out[name] = capsys.readouterr().out
    assert len(found.findings) > 8
    assert all(len(line) <= 80 for line in out["text"].splitlines())
    log = json.loads(out["sarif"])
    results = [(r["ruleId"], r["level"], r["message"]["text"].splitlines()[0]) for r in log["runs"][0]["results"]]
    assert results == [(item.code, item.severity, item.message) for item in found.findings]
    for item in found.findings:
        for name in ("text", "md"):
            words = " ".join(out[name].split())
            assert item.code in words and item.message in words and " ".join((item.help or "").split()) in words
    for cell in found.cells:
        assert cell.text in out["text"] and cell.text in out["md"]
    page = json.loads(out["html"].partition('id="record">')[2].partition("</script>")[0])["audit"]
    assert Audit.model_validate_json(json.dumps({"schema_version": 1, **page})) == shown(found)


def test_sarif_of_the_shipped_audit_fits_the_official_schema(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["audit", "--format", "sarif"]) == 0
    log = json.loads(capsys.readouterr().out)
    jsonschema.Draft4Validator(json.loads(SARIF.read_text(encoding="utf-8"))).validate(log)
    assert log["runs"][0]["results"]


def test_a_large_registry_is_audited_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2,500 maps in well under a quarter of the five seconds that 10,000 may take, growth being linear."""
    with world(tmp_path) as box:
        groups = 500
        contract = json.loads(box.contract.read_text())
        ops, before = [], "x"
        for index in range(groups):
            group = f"group_{index}"
            write(box.maps / "contracts" / f"{group}.json", {**contract, "equivalence_group": group})
            for rank in range(5):
                status = "candidate" if rank == 4 else "production"
                value = kernel_map(f"{index}_{rank}", 100 + rank, status)
                value["selection"]["equivalence_group"] = group
                value["impl"]["function"] = "toybox.fast:matmul"
                write(box.maps / f"{value['id']}.json", value)
            ops.append({
                "name": f"op{index}", "op": "toybox_matmul", "equivalence_group": group, "inputs": {"x": before},
                "weights": {"weight": "w"},
            })  # fmt: skip
            before = f"op{index}.y"
        tensors = [{"name": "w", "format": "fp32", "shape": ["H", "H"]}]
        box.edit(box.circuit, lambda v: v.update(
            blocks={"main": {"ops": ops}}, outputs=[{"name": "y", "value": before, "scope": "layer"}],
            storage={**v["storage"], "tensors": tensors},
        ))  # fmt: skip
        started = time.perf_counter()
        _, found = audit(box, capsys)
        seconds = time.perf_counter() - started
    assert found.maps > 2500 and len(found.candidates) == 2 * groups
    assert seconds < 5, f"{seconds:.1f} s"
