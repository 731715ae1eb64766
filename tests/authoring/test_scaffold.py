"""`new contract`, `new provider` and `new circuit`: what they write passes check and conformance at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import environment
import pytest
from environment import ROOT, Environment
from pydantic import TypeAdapter

from kernelmap.circuit.loading import read_circuit
from kernelmap.circuit.storage import reference_inventory
from kernelmap.cli.main import run
from kernelmap.errors import KernelmapError
from kernelmap.expressions import Predicate
from kernelmap.host import probe_host
from kernelmap.models.policy import Policy
from kernelmap.policies import make_policy
from kernelmap.registry import Registry, load_registry
from kernelmap.resolver import resolve
from kernelmap.scaffold import files, new_circuit

REGISTRY = load_registry()
GROUP = "fp32_weight_fp32_internal_fp32_output"
PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "acme-kernels"
version = "1"
[project.entry-points."kernelmap.providers"]
acme = "acme_kernels"
[tool.setuptools]
packages = ["acme_kernels"]
"""


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An empty package of somebody's, installed for editing."""
    base = tmp_path_factory.mktemp("acme")
    made = environment.make(base, base / "work")
    (made.work / "acme_kernels").mkdir()
    (made.work / "acme_kernels" / "__init__.py").write_text("")
    (made.work / "pyproject.toml").write_text(PYPROJECT)
    made.good("pip", "install", "-e", ".")
    return made


def test_a_chain_of_scaffolds_passes_everything_at_once(acme: Environment) -> None:
    folder = acme.work / "acme_kernels"
    made = json.loads(
        acme.good("kernelmap", "new", "contract", "acme_scale", "--package", "acme_kernels", "--format", "json")
    )
    assert made == {
        "contract": str(folder / "kernel_maps/contracts/acme_scale.json"),
        "oracle": str(folder / "acme_scale_oracle.py"),
    }
    for path in made.values():
        assert Path(path).stat().st_mode & 0o777 == 0o644
    assert "1 contract: 0 errors, 0 warnings" in acme.good("kernelmap", "check", made["contract"])
    acme.good("kernelmap", "new", "provider", "acme_fast", "--group", "acme_scale", "--package", "acme_kernels")
    said = acme.good("kernelmap", "new", "circuit", "acme_net", "--group", "acme_scale", "--package", "acme_kernels")
    assert said.startswith(f"wrote {folder}/circuits/acme_net.json\ncheck it with: kernelmap check ")
    checked = acme.good("kernelmap", "check", str(folder / "kernel_maps"), str(folder / "circuits"))
    assert "checked 1 map, 1 contract, 1 circuit: 0 errors" in checked
    routed = acme.good("kernelmap", "resolve", "acme_net", "--route", "acme_scale=acme_fast")
    assert routed.count("> acme_fast") == 2
    proved = acme.run("pytest", "-q", "-p", "no:cacheprovider", "--kernelmap-conformance=acme_kernels")
    assert proved.returncode == 0 and "3 passed" in proved.stdout, proved.stdout
    refused = acme.run("kernelmap", "resolve", "acme_net")
    assert refused.returncode == 1 and "acme_fast" in refused.stderr
    assert not [path for path in folder.rglob("*") if path.name.startswith(".kernelmap-")]


def test_scaffolding_twice_writes_nothing(acme: Environment) -> None:
    acme.run("kernelmap", "new", "contract", "twice", "--package", "acme_kernels")
    before = {path: path.read_bytes() for path in acme.work.rglob("*.json")}
    for kind, *more in (("contract",), ("circuit", "--group", "twice"), ("provider", "--group", "twice")):
        words = ("kernelmap", "new", kind, "twice", *more, "--package", "acme_kernels")
        acme.run(*words)
        again = acme.run(*words)
        assert again.returncode == 1 and "KM903" in again.stderr, again
    kept = {path: path.read_bytes() for path in before}
    assert kept == before


def test_an_oracle_that_exists_keeps_the_contract_from_being_written(acme: Environment) -> None:
    oracle = acme.work / "acme_kernels" / "half_oracle.py"
    oracle.write_text("mine\n")
    done = acme.run("kernelmap", "new", "contract", "half", "--package", "acme_kernels")
    assert done.returncode == 1 and "KM903" in done.stderr and oracle.read_text() == "mine\n"
    assert not (acme.work / "acme_kernels/kernel_maps/contracts/half.json").exists()


@pytest.mark.parametrize("group", sorted(REGISTRY.contracts))
def test_a_circuit_can_be_made_up_for_every_shipped_group(group: str, tmp_path: Path) -> None:
    path = new_circuit("made_up", group, REGISTRY, circuits=tmp_path)
    item = read_circuit(str(path))
    inventory = reference_inventory(item.circuit, item.source)
    op = item.circuit.blocks["main"].ops[0]
    ladder = [entry for entry in REGISTRY.ladders[group] if entry.selection.status.value in ("production", "candidate")]
    routes = [f"{op.name}:{phase.value}={entry.id}" for entry in ladder for phase in entry.selection.phases]
    policy: Policy = make_policy(None, routes=routes)
    plan = resolve(item.circuit, item.source, inventory, REGISTRY, probe_host(), policy)
    assert {decision.group for decision in plan.decisions} == {group}
    assert {decision.provider for decision in plan.decisions} <= {entry.id for entry in ladder}


def test_a_circuit_of_a_contract_that_no_sizes_fit_is_refused(tmp_path: Path) -> None:
    never = TypeAdapter(Predicate).validate_python("N > 1000000")
    contract = REGISTRY.contracts[GROUP].model_copy(update={"requires": (never,)})
    registry = Registry(**{**_fields(REGISTRY), "contracts": {GROUP: contract}})
    with pytest.raises(KernelmapError, match=r"KM907.*no small sizes satisfy N > 1000000"):
        new_circuit("never", GROUP, registry, circuits=tmp_path)
    assert not list(tmp_path.iterdir())


def _fields(registry: Registry) -> dict[str, object]:
    return {name: getattr(registry, name) for name in Registry.__dataclass_fields__}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("contract", "Upper"), "KM105"),
        (("contract", "../up"), "KM105"),
        (("contract", "9lives"), "KM105"),
        (("contract", "ünder"), "KM105"),
        (("contract", "a" * 201), "KM105"),
        (("contract", "fine", "--op", "not-fine"), "KM105"),
        (("contract", "fine", "--package", "kernelmap_provider"), "KM904"),
        (("contract", "fine", "--into", "nowhere"), "KM904"),
        (("contract", GROUP), "KM903"),
        (("circuit", "fine", "--group", "fp32_weight_fp32_internal_fp32_outpu"), "KM451"),
        (("circuit", "qwen35_moe", "--group", GROUP), "KM903"),
        (("circuit", "fine", "--group", GROUP, "--into", "nowhere"), "KM904"),
        (("provider", "class-y", "--group", GROUP), "KM105"),
    ],
)
def test_bad_words_are_refused_and_nothing_is_written(
    words: tuple[str, ...],
    code: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path for folder in ("kernel_maps", "circuits", "providers") for path in (ROOT / folder).rglob("*.json")}
    assert run(["new", *words]) == 1
    assert code in capsys.readouterr().err
    after = {path for folder in ("kernel_maps", "circuits", "providers") for path in (ROOT / folder).rglob("*.json")}
    assert after == before and not list(tmp_path.iterdir())


def test_a_disk_that_refuses_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.link, []

    def link(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device", str(target))
        real(source, target)

    monkeypatch.setattr(files.os, "link", link)
    with pytest.raises(KernelmapError, match=r"KM904.*No space left"):
        files.write_all({tmp_path / "a.json": "1", tmp_path / "b.json": "2"})
    assert not list(tmp_path.iterdir())


def test_a_file_that_comes_to_exist_meanwhile_is_kept(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("theirs")
    with pytest.raises(KernelmapError, match="KM903"):
        files.write_all({tmp_path / "a.json": "1", tmp_path / "b.json": "2"})
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"] and (tmp_path / "b.json").read_text() == "theirs"


def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = files._write_new

    def interrupted(path: Path, text: str) -> None:
        if path.name == "b.json":
            raise KeyboardInterrupt
        real(path, text)

    monkeypatch.setattr(files, "_write_new", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_all({tmp_path / "a.json": "1", tmp_path / "b.json": "2"})
    assert not list(tmp_path.iterdir())


def test_files_of_this_project_name_their_schema(tmp_path: Path) -> None:
    """In the project's own folders the reference leads to the schema; elsewhere there is none."""
    circuit = json.loads(new_circuit("one", GROUP, REGISTRY, circuits=tmp_path).read_text())
    assert (tmp_path / circuit["$schema"]).resolve() == ROOT / "src/kernelmap/schemas/circuit.schema.json"
    reference = files.schema_reference("contract", ROOT / "kernel_maps/contracts/x.json", files.OURS)
    assert reference == {"$schema": "../../src/kernelmap/schemas/contract.schema.json"}
    assert files.schema_reference("contract", tmp_path / "x.json", "acme_kernels") == {}
