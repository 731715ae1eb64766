"""Certificates: given to right providers, refused to wrong ones, stale when anything they rest on changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelmap.certify.certificates import boundary_faults, certify, isa_paths, write_evidence
from kernelmap.cli.main import run
from kernelmap.errors import KernelmapError
from kernelmap.host import load_host, probe_host
from kernelmap.models.evidence import Evidence
from kernelmap.models.kernel_map import Constraints, DimConstraint, KernelMap
from kernelmap.registry import Registry, load_registry
from kernelmap.staleness import staleness

REGISTRY = load_registry()
HOST = probe_host()
Q4_K = "gemm_nt_q4_k_q8_k"
ROUTED = "moe_swiglu_expert_forward_q4k_q5k"
SOFTMAX = "moe_softmax_topk_router_llama_f32"


def planted(like: str, function: str) -> tuple[KernelMap, Registry]:
    """A provider that declares what ``like`` declares, computed by a planted function."""
    item = REGISTRY.maps[like]
    impl = item.impl.model_copy(update={"function": f"planted:{function}", "variants": (item.impl.base,)})
    workspace = tuple(scratch.model_copy(update={"name": "workspace"}) for scratch in item.scratch[:1])
    made = item.model_copy(update={"id": function, "impl": impl, "scratch": workspace})
    return made, REGISTRY.with_maps([made])


@pytest.mark.parametrize(("like", "function"), [(Q4_K, "right"), (ROUTED, "right_experts")])
def test_the_planted_frame_itself_is_right(like: str, function: str) -> None:
    item, registry = planted(like, function)
    outcome = certify(item, registry, HOST, most=8)
    assert outcome.evidence is not None, outcome.faults


@pytest.mark.parametrize(
    ("like", "function", "said"),
    [
        (ROUTED, "merge_order", "output differs"),
        (Q4_K, "dropped_mins", "y differs"),
        (Q4_K, "skipped_tail", "y differs"),
        (Q4_K, "saturating_pairs", "y differs"),
        (Q4_K, "thread_dependent_sum", "threads=2"),
        (Q4_K, "stale_scratch", "y differs"),
        (SOFTMAX, "wrong_tie_rule", "indices differs"),
        (Q4_K, "fused_multiply_add", "y differs"),
        (Q4_K, "scale_off_by_one_row", "y differs"),
        (ROUTED, "slot_weight_swapped", "output differs"),
        (Q4_K, "out_of_bounds_write", "wrote outside y"),
        (Q4_K, "uninitialised_output", "y differs"),
    ],
)
def test_each_planted_mistake_is_refused(like: str, function: str, said: str) -> None:
    item, registry = planted(like, function)
    outcome = certify(item, registry, HOST, most=16)
    assert outcome.evidence is None
    assert any(said in str(fault) for fault in outcome.faults), outcome.faults


def test_a_provider_unlike_another_of_its_group_gets_no_certificate() -> None:
    """Right by the oracle, and yet the group is not one: the certificate says with whom it disagrees."""
    right, _ = planted(Q4_K, "right")
    wrong, registry = planted(Q4_K, "dropped_mins")
    outcome = certify(right, registry.with_maps([right]), HOST, most=8)
    assert outcome.evidence is None
    assert outcome.faults and all("unlike dropped_mins: y differs" in str(fault) for fault in outcome.faults)
    elsewhere = wrong.model_copy(update={"requires": wrong.requires.model_copy(update={"isa": ("sve",)})})
    assert certify(right, REGISTRY.with_maps([right, elsewhere]), HOST, most=2).evidence is not None


def certificate(tmp_path: Path) -> Evidence:
    outcome = certify(REGISTRY.maps["gemv_fp32"], REGISTRY, HOST, most=2)
    assert outcome.evidence is not None
    path = write_evidence(outcome.evidence, tmp_path)
    return Evidence.model_validate_json(path.read_text(encoding="utf-8"))


def test_a_certificate_says_what_it_rests_on(tmp_path: Path) -> None:
    proof = certificate(tmp_path)
    assert proof.result == "pass" and proof.cases >= 2 and proof.worst_error == 0
    assert "portable" in proof.isa_paths and set(proof.isa_paths).isdisjoint(proof.not_run)
    assert {"python", "numpy", "numba", "llvmlite"} <= set(proof.toolchain)
    assert staleness(REGISTRY.maps["gemv_fp32"], REGISTRY, proof) == ()
    again = certificate(tmp_path)
    assert again.corpus_digest == proof.corpus_digest and again.source_digest == proof.source_digest


def test_a_certificate_is_stale_when_anything_changes(tmp_path: Path) -> None:
    proof = certificate(tmp_path)
    item = REGISTRY.maps["gemv_fp32"]
    assert staleness(item, REGISTRY, None) == ("no evidence",)
    changed = item.model_copy(update={"selection": item.selection.model_copy(update={"priority": 101})})
    assert staleness(changed, REGISTRY, proof) == ("the map changed",)
    for field, why in (("contract_digest", "contract"), ("source_digest", "source")):
        assert staleness(item, REGISTRY, proof.model_copy(update={field: "sha256:0"})) == (f"the {why} changed",)
    assert staleness(item, REGISTRY, proof.model_copy(update={"result": "fail"})) == ("its certificate says fail",)


def test_paths_that_the_host_lacks_are_named() -> None:
    runs, missing = isa_paths(REGISTRY.maps["gemv_fp32"], load_host("avx2_2core"))
    assert list(runs) == ["portable", "avx2"] and missing == ("avxvnni", "avx512vnni", "neon")


def test_boundaries_are_tried_on_both_sides() -> None:
    item = REGISTRY.maps["gemv_fp32"]
    contract = REGISTRY.contracts[item.selection.equivalence_group]
    limits = {"N": DimConstraint(min=8, max=100, multiple_of=8), "K": DimConstraint(max=7)}
    assert list(boundary_faults(item.model_copy(update={"constraints": Constraints(dims=limits)}), contract)) == []


def test_no_fitting_case_is_an_error() -> None:
    item = REGISTRY.maps["gemv_fp32"]
    huge = item.model_copy(update={"constraints": Constraints(dims={"N": DimConstraint(min=1 << 40)})})
    with pytest.raises(KernelmapError) as caught:
        certify(huge, REGISTRY.with_maps([huge]), HOST)
    assert caught.value.diagnostics[0].code == "KM561"


def test_the_command_writes_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certify", "gemv_fp32", "--into", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["gemv_fp32"]["result"] == "pass"
    assert (tmp_path / "gemv_fp32.json").is_file()
    assert run(["certify", "nobody", "--into", str(tmp_path)]) == 1
    assert "KM457" in capsys.readouterr().err
    assert run(["certify", "gemv_fp32", "--into", str(tmp_path / "none")]) == 1
    assert "KM562" in capsys.readouterr().err


def test_evidence_goes_beside_the_maps_that_it_is_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the shipped maps it would be of an unknown provider, and every other command refused to start."""
    value = json.loads(Path(REGISTRY.sources["gemv_fp32"].name).read_text(encoding="utf-8"))
    value |= {"id": "gemv_mine", "selection": value["selection"] | {"status": "candidate", "priority": 1}}
    (tmp_path / "gemv_mine.json").write_text(json.dumps(value), encoding="utf-8")
    assert run(["certify", "gemv_mine", "--maps", str(tmp_path)]) == 0
    assert (tmp_path / "evidence" / "gemv_mine.json").is_file()
    assert run(["list"]) == 0 and run(["certify", "gemv_mine", "--check", "--maps", str(tmp_path)]) == 0
    (tmp_path / "evidence" / "gemv_mine.json").unlink()
    (tmp_path / "evidence").rmdir()
    (tmp_path / "evidence").write_text("a file")
    capsys.readouterr()
    assert run(["certify", "gemv_mine", "--maps", str(tmp_path)]) == 1
    assert "KM562" in capsys.readouterr().err
