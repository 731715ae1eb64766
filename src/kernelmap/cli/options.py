"""Options that several commands share, and what they select."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelmap.circuit.loading import CircuitFile, circuit_for, read_circuit
from kernelmap.circuit.storage import reference_inventory
from kernelmap.cli.output import Format, choose
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.policy import EvidencePolicy, Policy
from kernelmap.policies import make_policy, read_policy, switches_set
from kernelmap.registry import Registry, load_registry
from kernelmap.resolver import kill_switches


def _formats(*allowed: Format) -> Any:
    """The ``--format`` option of a command that takes these."""
    words = "|".join(allowed)

    def check(output: Format) -> Format:
        if output not in allowed:
            raise typer.BadParameter(f"one of {words}, not {output.value}", param_hint="--format")
        choose(output)
        return output

    return typer.Option("--format", metavar=words, help="Output format.", callback=check)


FormatOption = Annotated[Format, _formats(Format.TEXT, Format.JSON, Format.GITHUB)]
CheckFormatOption = Annotated[Format, _formats(Format.TEXT, Format.JSON, Format.GITHUB, Format.SARIF)]
DiffFormatOption = Annotated[Format, _formats(Format.TEXT, Format.JSON, Format.GITHUB, Format.MD)]
AuditFormatOption = Annotated[Format, _formats(Format.TEXT, Format.JSON, Format.SARIF, Format.MD, Format.HTML)]
ReportFormatOption = Annotated[Format, _formats(Format.HTML, Format.JSON)]
MapsOption = Annotated[
    list[Path] | None, typer.Option("--maps", metavar="DIR", help="A further folder of maps (repeatable).")
]
CircuitsOption = Annotated[
    list[Path] | None, typer.Option("--circuits", metavar="DIR", help="A further folder of circuits (repeatable).")
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", metavar="FILE", help="GGUF, safetensors or JSON profile; else reference storage."),
]
HostOption = Annotated[
    str | None, typer.Option("--host", metavar="PROFILE", help="A host profile by name or path; else this machine.")
]
PolicyOption = Annotated[Path | None, typer.Option("--policy", metavar="FILE", help="A policy file; flags add to it.")]
RouteOption = Annotated[
    list[str] | None, typer.Option("--route", metavar="OP[:PHASE]=ID", help="Let a candidate compete (repeatable).")
]
PinOption = Annotated[
    list[str] | None, typer.Option("--pin", metavar="OP[:PHASE]=ID", help="This provider or an error (repeatable).")
]
ExcludeOption = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="ID", help="Never this provider (repeatable).")
]
EvidenceOption = Annotated[
    str | None, typer.Option("--evidence", metavar="ignore|warn|require", help="What to do without evidence.")
]
SettingOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the circuit (repeatable).")
]
LockedOption = Annotated[
    Path | None, typer.Option("--locked", metavar="FILE", help="Take its policy, and refuse any drift from it.")
]
PhaseOption = Annotated[
    list[str] | None, typer.Option("--phase", metavar="PHASE", help="Show only this phase (repeatable).")
]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a command resolves: circuit, inventory, and where the storage facts come from."""

    circuit: CircuitFile
    inventory: Inventory
    storage: str


def subject(target: str, model: Path | None, circuits: list[Path] | None) -> Subject:
    """A circuit by name, path, or as the one that serves a model file."""
    from kernelmap.inventory import read_inventory

    folders = tuple(circuits or ())
    if model is None and _is_model(target):
        model = Path(target)
        inventory = read_inventory(model)
        return Subject(circuit_for(inventory.architecture, folders), inventory, "model file")
    circuit = read_circuit(target, folders)
    if model is not None:
        return Subject(circuit, read_inventory(model), "model file")
    return Subject(circuit, reference_inventory(circuit.circuit, circuit.source), "reference storage")


def _is_model(target: str) -> bool:
    path = Path(target)
    return path.suffix in (".gguf", ".safetensors") or path.is_dir()


def host_of(name: str | None) -> Host:
    """A host profile, or this machine."""
    from kernelmap.host import load_host, probe_host

    return probe_host() if name is None else load_host(name)


def registry_of(maps: list[Path] | None) -> Registry:
    """The shipped registry with further folders."""
    return load_registry(tuple(maps or ()))


def policy_of(
    registry: Registry,
    file: Path | None = None,
    routes: list[str] | None = None,
    pins: list[str] | None = None,
    exclude: list[str] | None = None,
    evidence: str | None = None,
    settings: list[str] | None = None,
) -> Policy:
    """The policy of flags, file and environment (kill switches)."""
    return make_policy(
        read_policy(file) if file is not None else None,
        routes=routes or (),
        pins=pins or (),
        exclude=exclude or (),
        evidence=_evidence(evidence),
        options=settings or (),
        kill_switches=switches_set(kill_switches(registry), os.environ),
    )


def _evidence(word: str | None) -> EvidencePolicy | None:
    if word in (None, "ignore", "warn", "require"):
        return word  # type: ignore[return-value]  # mypy does not narrow by membership
    raise typer.BadParameter("one of ignore, warn, require", param_hint="--evidence")


def phases_of(words: list[str] | None) -> tuple[str, ...]:
    """The phases to show. Refuses a word that is none."""
    for word in words or ():
        if word not in ("init", "prefill", "decode"):
            raise typer.BadParameter(f"{word!r} is none of init, prefill, decode", param_hint="--phase")
    return tuple(words or ())
