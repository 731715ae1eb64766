"""Every kind of edit to a map, contract, provider source, reference, certificate or host makes a certificate stale."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tracebox import Box, forget, kernel_map, world, write

from kernelmap.cli import options, proving
from kernelmap.cli.main import run
from kernelmap.host import probe_host

MAP, CONTRACT = ("the map changed",), ("the contract changed",)
SOURCE, REFERENCE = ("the source changed",), ("the reference changed",)
CERTIFIED = ("box_mul", "box_mul_limited", "box_sum")
LIMITED = kernel_map("box_mul_limited", "kernels:mul", 50, constraints={"dims": {"H": {"max": 64}}})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The certificates of the world as it is made, by file name; nothing in them depends on where it lies."""
    with world(tmp_path_factory.mktemp("certified")) as made:
        write(made.map("box_mul_limited"), LIMITED)
        folder = made.maps / "evidence"
        assert run(["certify", *CERTIFIED, *made.flags[:2], "--into", str(folder)]) == 0
        return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.fixture
def box(tmp_path: Path, certificates: dict[str, str]) -> Iterator[Box]:
    with world(tmp_path) as made:
        write(made.map("box_mul_limited"), LIMITED)
        for name, text in certificates.items():
            (made.maps / "evidence" / name).write_text(text, encoding="utf-8")
        yield made


def check(box: Box, name: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """(exit code, why the certificate of ``name`` is stale, or the codes of what cannot be loaded)."""
    forget()
    capsys.readouterr()
    code = run(["certify", name, "--check", *box.flags[:2], "--format", "json"])
    value = json.loads(capsys.readouterr().out)
    if "diagnostics" in value:
        return code, tuple(sorted({item["code"] for item in value["diagnostics"]}))
    return code, tuple(value["certificates"][name]["why"])


def change(name: str, edit: Callable[[dict[str, Any]], object]) -> Callable[[Box], object]:
    return lambda box: box.edit(box.map(name), edit)


def contract(edit: Callable[[dict[str, Any]], object]) -> Callable[[Box], object]:
    return lambda box: box.edit(box.contract(), edit)


def append(*parts: str) -> Callable[[Box], object]:
    def edit(box: Box) -> None:
        path = box.site.joinpath(*parts)
        path.write_text(path.read_text(encoding="utf-8") + "\nX = 1\n", encoding="utf-8")

    return edit


def proof(**changes: Any) -> Callable[[Box], object]:
    return lambda box: box.edit(box.maps / "evidence" / "box_mul.json", lambda value: value.update(changes))


def variant(**changes: Any) -> Callable[[Box], object]:
    return change("box_mul", lambda value: value["impl"]["variants"][0].update(changes))


@dataclass(frozen=True)
class Edit:
    name: str
    apply: Callable[[Box], object]
    why: tuple[str, ...]
    of: str = "box_mul"


TWO = {"name": "two", "requires": ["avx2"], "fallback": "serial"}
EDITS = (
    # The map
    Edit("priority", change("box_mul", lambda v: v["selection"].update(priority=201)), MAP),
    Edit("phases", change("box_mul", lambda v: v["selection"].update(phases=["prefill"])), MAP),
    Edit("isa", change("box_mul", lambda v: v.update(requires={"isa": ["sse2"]})), MAP),
    Edit("device", change("box_mul", lambda v: v.update(requires={"device": "any"})), MAP),
    Edit("constraint", change("box_mul", lambda v: v.update(constraints={"dims": {"H": {"max": 8}}})), MAP),
    Edit(
        "constraint widened", change("box_mul_limited", lambda v: v["constraints"]["dims"]["H"].update(max=128)), MAP,
        "box_mul_limited",
    ),
    Edit("constraint gone", change("box_mul_limited", lambda v: v.pop("constraints")), MAP, "box_mul_limited"),
    Edit("scratch", change("box_sum", lambda v: v["scratch"][0].update(size_bytes="8 * H")), MAP, "box_sum"),
    Edit("scratch alignment", change("box_sum", lambda v: v["scratch"][0].update(alignment=128)), MAP, "box_sum"),
    Edit("backend", change("box_mul", lambda v: v["impl"].update(backend="numba")), MAP),
    Edit("guard", variant(shape_constraints={"R_min": 3}), MAP),
    Edit("kill switch", variant(kill_switch="BOX_OFF"), MAP),
    Edit("variant's needs", variant(requires=["avx2"]), MAP),
    Edit("variant's function", variant(function="tracebox.kernels:mul_wrong"), MAP),
    Edit("variant's function elsewhere", variant(function="tracebox.plain:mul"), (*MAP, *SOURCE)),
    Edit("variant renamed", variant(name="wider"), MAP),
    Edit("variant gone", change("box_mul", lambda v: v["impl"]["variants"].pop(0)), MAP),
    Edit("variant added", change("box_mul", lambda v: v["impl"]["variants"].insert(0, TWO)), MAP),
    Edit("function", change("box_mul", lambda v: v["impl"].update(function="tracebox.kernels:mul_wrong")), MAP),
    Edit(
        "function elsewhere", change("box_mul", lambda v: v["impl"].update(function="tracebox.plain:mul")),
        (*MAP, *SOURCE),
    ),
    Edit("map broken", lambda b: b.map("box_mul").write_text("{"), ("KM008", "KM218")),
    Edit("map gone", lambda b: b.map("box_mul").unlink(), ("KM218",)),
    # The contract
    Edit("arithmetic", contract(lambda v: v.update(arithmetic={"product": "fp32"})), CONTRACT),
    Edit(
        "equivalence", contract(lambda v: v.update(equivalence={"kind": "tolerance", "rtol": 1e-5, "atol": 0.0})),
        CONTRACT,
    ),
    Edit("domain", contract(lambda v: v["inputs"][0].update(domain={"min": "0", "max": "9"})), CONTRACT),
    Edit("requirement", contract(lambda v: v.update(requires=["H > 1"])), CONTRACT),
    Edit(
        "parameter", contract(lambda v: v.update(params=[{"name": "eps", "type": "float", "default": 0.5}])), CONTRACT,
    ),
    Edit("alignment", contract(lambda v: v.update(alignment={"H": 4})), CONTRACT),
    Edit("oracle", contract(lambda v: v.update(oracle="tracebox.plain:mul")), (*CONTRACT, *REFERENCE)),
    # Sources
    Edit("source", append("kernels.py"), SOURCE),
    Edit("source of the package", append("__init__.py"), (*SOURCE, *REFERENCE)),
    Edit("source gone", lambda b: (b.site / "kernels.py").unlink(), SOURCE),
    Edit("reference", append("oracles.py"), REFERENCE),
    Edit("what the reference imports", append("arithmetic.py"), REFERENCE),
    # The certificate
    Edit("certificate gone", lambda b: (b.maps / "evidence" / "box_mul.json").unlink(), ("no evidence",)),
    Edit("certificate that says fail", proof(result="fail"), ("its certificate says fail",)),
    Edit("certificate of another contract", proof(contract_digest="sha256:0"), CONTRACT),
    Edit("certificate of another map", proof(map_digest="sha256:0"), MAP),
    Edit("certificate of another source", proof(source_digest="sha256:0"), SOURCE),
    Edit("certificate of another reference", proof(reference_digest="sha256:0"), REFERENCE),
    Edit("certificate broken", lambda b: (b.maps / "evidence" / "box_mul.json").write_text("{"), ("KM008",)),
)  # fmt: skip

HARMLESS = (
    Edit("nothing", lambda b: None, ()),
    Edit("status alone", change("box_mul", lambda v: v["selection"].update(status="candidate")), ()),
    Edit("summary of the map", change("box_mul", lambda v: v.update(summary="other")), ()),
    Edit("caveat of the map", change("box_mul", lambda v: v.update(caveats=["mind"])), ()),
    Edit("summary of the contract", contract(lambda v: v.update(summary="other")), ()),
    Edit("another map", change("box_mul_plain", lambda v: v["selection"].update(priority=500)), ()),
    Edit(
        "another contract",
        lambda b: b.edit(b.contract("box_sum_fp32"), lambda v: v.update(arithmetic={"sum": "fp32"})), (),
    ),
    Edit("a source that it does not import", append("plain.py"), ()),
    Edit("layout of a file", lambda b: b.contract().write_text(json.dumps(json.loads(b.contract().read_text()))), ()),
)  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_every_edit_is_noticed(box: Box, edit: Edit, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(box, edit.of, capsys) == (0, ())
    edit.apply(box)
    assert check(box, edit.of, capsys) == (1, edit.why)


@pytest.mark.parametrize("edit", HARMLESS, ids=lambda edit: edit.name)
def test_what_changes_nothing_leaves_it_valid(box: Box, edit: Edit, capsys: pytest.CaptureFixture[str]) -> None:
    edit.apply(box)
    assert check(box, edit.of, capsys) == (0, ())


@pytest.mark.parametrize(
    ("feature", "why"),
    [("avxvnni", ("made on a host without avxvnni, which this one has",)), ("fma", ()), ("gfni", ())],
)
def test_a_host_with_a_path_that_was_not_run(
    box: Box, feature: str, why: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = probe_host()
    plain = here.model_copy(update={"isa": tuple(item for item in here.isa if item != "avxvnni")})
    richer = here.model_copy(update={"isa": tuple(sorted({*plain.isa, feature}))})
    assert proving.options is options
    monkeypatch.setattr(options, "host_of", lambda _name: plain)
    assert run(["certify", "box_mul", *box.flags[:2], "--into", str(box.maps / "evidence")]) == 0
    assert check(box, "box_mul", capsys) == (0, ())
    monkeypatch.setattr(options, "host_of", lambda _name: richer)
    assert check(box, "box_mul", capsys) == (1 if why else 0, why)


def test_a_refused_provider_gets_no_certificate(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in (box.maps / "evidence").iterdir())
    for name in ("box_mul_wrong", "box_mul_rude", "box_mul_beyond", "box_mul_gap", "box_sum_forgets"):
        assert run(["certify", name, *box.flags[:2], "--into", str(box.maps / "evidence")]) == 1
    assert sorted(path.name for path in (box.maps / "evidence").iterdir()) == before
