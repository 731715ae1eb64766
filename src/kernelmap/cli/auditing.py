"""``lock``, ``diff`` and ``audit``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kernelmap.circuit.loading import circuit_paths
from kernelmap.cli import options
from kernelmap.cli.output import CLEAN, PROBLEM, Format, emit, emit_json, report
from kernelmap.diff import compare, diagnostics
from kernelmap.errors import Diagnostic, KernelmapError, Severity
from kernelmap.lock import LockHost, LockMaker, Target, locked_policy, read_lock, restricted, write_lock
from kernelmap.models.host import Host
from kernelmap.models.lock import Lock, LockedHost
from kernelmap.models.plan import Plan
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry
from kernelmap.source_digests import SourceTree
from kernelmap.sources import provider_packages

HostsOption = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="PROFILE", help="A host profile by name or path (repeatable); else this machine."),
]
TargetsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[CIRCUIT]...", help="Circuits or model files; else all circuits.")
]
ProfilesOption = Annotated[
    list[str] | None,
    typer.Option("--hosts", "--host", metavar="PROFILE[,…]", help="Host profiles; else all that are shipped."),
]
_MEANT = "if it is meant, see kernelmap diff and write the lock anew"


def lock(
    targets: TargetsArgument = None,
    written: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Where to write the lock.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Resolve anew, and fail on any drift from the lock.")] = False,
    file: Annotated[Path | None, typer.Option("--lock", metavar="FILE", help="The lock to check.")] = None,
    model: options.ModelOption = None,
    host: HostsOption = None,
    route: options.RouteOption = None,
    pin: options.PinOption = None,
    exclude: options.ExcludeOption = None,
    evidence: options.EvidenceOption = None,
    option: options.SettingOption = None,
    policy: options.PolicyOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.FormatOption = Format.TEXT,
) -> int:
    """Lock the choices of circuits and what they rest on (--output), or check a lock (--check --lock FILE)."""
    if check == (file is None) or check == (written is not None) or (check and (targets or host)):
        hint = "kernelmap lock [CIRCUIT]... --output FILE, or kernelmap lock --check --lock FILE"
        raise typer.BadParameter(f"either {hint}; a check takes circuits and hosts from the lock")
    registry = options.registry_of(maps)
    given = options.policy_of(registry, policy, route, pin, exclude, evidence, option)
    if file is not None:
        return _check(file, registry, given, model, circuits, output)
    assert written is not None
    maker = LockMaker(registry, SourceTree(provider_packages()), given)
    hosts = [lock_host(name) for name in host or (None,)]
    if model is not None and not targets:
        chosen = [target_of(str(model), None, circuits)]
    else:
        chosen = [target_of(name, model, circuits) for name in targets or circuit_paths(tuple(circuits or ()))]
    for target in chosen:
        maker.resolve(target, hosts)
    if maker.problems:
        raise KernelmapError(maker.problems)
    made = maker.lock(complete=not targets and model is None)
    write_lock(made, written)
    if output is Format.JSON:
        emit_json({"lock": str(written), **_counts(made)})
    else:
        emit(f"locked {_counted(made)} in {written}")
    return CLEAN


def _counts(made: Lock) -> dict[str, int]:
    choices = sum(len(c) for item in made.circuits.values() for hosts in item.choices.values() for c in hosts.values())
    return {
        "circuits": len(made.circuits), "hosts": len(made.hosts), "choices": choices, "contracts": len(made.contracts),
        "maps": len(made.maps),
    }  # fmt: skip


def _counted(made: Lock) -> str:
    return ", ".join(
        f"{count} {name.removesuffix('s') if count == 1 else name}" for name, count in _counts(made).items()
    )


def lock_host(profile: str | None) -> LockHost:
    """A host profile, or this machine, to lock for."""
    return LockHost(options.host_of(profile), profile)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is audited: circuits on hosts."""

    targets: list[Target]
    names: list[str]
    """Host profiles as given."""
    hosts: list[Host]
    whole: bool
    """Every circuit there is: what none asks for is a finding."""


def scope_of(
    targets: list[str] | None, hosts: list[str] | None, model: Path | None, circuits: list[Path] | None
) -> Scope:  # fmt: skip
    """Circuits or model files, else all circuits; host profiles, else all that are shipped."""
    from kernelmap.host import profile_names

    names = [name for word in hosts or profile_names() for name in word.split(",")]
    machines = [options.host_of(name) for name in dict.fromkeys(names)]
    words = targets or ([str(model)] if model is not None else [*circuit_paths(tuple(circuits or ()))])
    chosen = [target_of(name, model if targets else None, circuits) for name in words]
    return Scope(chosen, names, machines, not targets and model is None)


def target_of(name: str, model: Path | None, circuits: list[Path] | None) -> Target:
    """A circuit by name or path, or of a model file, with its storage facts."""
    about = options.subject(name, model, circuits)
    if about.storage != "model file":
        return Target(name, about.circuit, about.inventory)
    return Target(
        about.circuit.circuit.id if model is None else name, about.circuit, about.inventory, str(model or name)
    )


def _check(
    file: Path, registry: Registry, given: Policy, model: Path | None, circuits: list[Path] | None, output: Format
) -> int:
    before = read_lock(file)
    maker = LockMaker(registry, SourceTree(provider_packages()), locked_policy(before, given))
    problems: list[Diagnostic] = []
    hosts = []
    for name, locked in before.hosts.items():
        try:
            hosts.append(_again(name, locked))
        except KernelmapError as error:
            problems += error.diagnostics
    for item in hosts:
        maker.know(item)
    for target in _targets(before, model, circuits, problems):
        maker.resolve(target, hosts)
    now = maker.lock(complete=before.complete, groups=before.contracts)
    diff = compare(before, now, (str(file), "now"))
    problems += diagnostics(diff, help=_MEANT)
    if not problems and output is not Format.JSON:
        emit(f"{file}: no drift: {_counted(before)}")
    return report(problems)


def _again(name: str, item: LockedHost) -> LockHost:
    """A locked host as it is now, under the name that it was locked by."""
    found = lock_host(item.profile)
    return LockHost(found.host.model_copy(update={"name": name}), item.profile)


def _targets(
    before: Lock, model: Path | None, circuits: list[Path] | None, problems: list[Diagnostic]
) -> Iterable[Target]:
    """Every locked circuit as it is now, and new ones if all were locked. Those that cannot be read are problems."""
    words = {item.target: item.model for item in before.circuits.values()}
    if before.complete:
        words |= {name: None for name in circuit_paths(tuple(circuits or ())) if name not in before.circuits}
    for word, locked_model in words.items():
        storage = Path(locked_model) if locked_model is not None else None
        try:
            yield target_of(word, (model or storage) if storage is not None else None, circuits)
        except KernelmapError as error:
            problems += error.diagnostics


def refuse_drift(
    before: Lock, plan: Plan, about: options.Subject, registry: Registry, profile: str | None, policy: Policy
) -> None:
    """Raises KernelmapError with every difference of a plan from a lock, or if the lock does not cover the plan."""
    name = next((name for name, item in before.hosts.items() if item.profile == profile), None)
    if name is None:
        wanted = profile or "this machine"
        help = f"it holds {', '.join(before.hosts)}"
        raise KernelmapError(Diagnostic("KM830", f"the lock was not made for {wanted}", help=help))
    old = restricted(before, plan.circuit, name)
    maker = LockMaker(registry, SourceTree(provider_packages()), policy)
    facts = plan.host.model_copy(update={"name": name})
    locked = before.circuits[plan.circuit]
    maker.add(Target(locked.target, about.circuit, about.inventory), LockHost(options.host_of(profile), profile), facts,
              plan.decisions)  # fmt: skip
    found = diagnostics(compare(old, maker.lock()), help=_MEANT)
    if found:
        raise KernelmapError(found)


def diff(
    before: Annotated[str, typer.Argument(help="A lock file, a folder of maps, git:REV or host:NAME.")],
    after: Annotated[str, typer.Argument(help="Likewise.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 if anything changed.")] = False,
    host: HostsOption = None,
    route: options.RouteOption = None,
    pin: options.PinOption = None,
    exclude: options.ExcludeOption = None,
    evidence: options.EvidenceOption = None,
    option: options.SettingOption = None,
    policy: options.PolicyOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.DiffFormatOption = Format.TEXT,
) -> int:
    """Say what changed between two locks, folders of maps, git revisions or hosts, each change with its class."""
    from kernelmap.diff_text import diff_markdown, diff_text
    from kernelmap.render import render_github
    from kernelmap.sides import Ground, side_of

    registry = options.registry_of(maps)
    given = options.policy_of(registry, policy, route, pin, exclude, evidence, option)
    hosts = [lock_host(name) for name in host or (None,)]
    ground = Ground(registry, hosts, lock_host, given, tuple(circuits or ()))
    found = compare(side_of(before, ground), side_of(after, ground), (before, after))
    if output is Format.JSON:
        emit_json(found.model_dump(mode="json", by_alias=True, exclude={"schema_ref"}))
    elif output is Format.GITHUB:
        emit(render_github(diagnostics(found, Severity.WARNING)) or "no change")
    else:
        emit(diff_markdown(found) if output is Format.MD else diff_text(found))
    return PROBLEM if exit_code and found.changes else CLEAN


def audit(
    targets: TargetsArgument = None,
    hosts: ProfilesOption = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Production without valid evidence is an error; exit 1 on warnings too.")
    ] = False,
    model: options.ModelOption = None,
    route: options.RouteOption = None,
    pin: options.PinOption = None,
    exclude: options.ExcludeOption = None,
    evidence: options.EvidenceOption = None,
    option: options.SettingOption = None,
    policy: options.PolicyOption = None,
    maps: options.MapsOption = None,
    circuits: options.CircuitsOption = None,
    output: options.AuditFormatOption = Format.TEXT,
) -> int:
    """Say what has no provider or one only, what never runs, what candidates lack and what is not proved."""
    from kernelmap.audit import audit as run_audit
    from kernelmap.audit_text import audit_markdown, audit_text
    from kernelmap.sarif import sarif

    registry = options.registry_of(maps)
    given = options.policy_of(registry, policy, route, pin, exclude, evidence, option)
    scope = scope_of(targets, hosts, model, circuits)
    found = run_audit(scope.targets, scope.hosts, registry, given, whole=scope.whole, strict=strict)
    if output is Format.JSON:
        emit_json(found.record.model_dump(mode="json", by_alias=True, exclude={"schema_ref"}))
    elif output is Format.SARIF:
        emit_json(sarif(found.findings))
    elif output is Format.HTML:
        from kernelmap.report.page import audit_html

        emit(audit_html(found.record))
    else:
        emit(audit_markdown(found.record) if output is Format.MD else audit_text(found.record))
    stops = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    return PROBLEM if any(item.severity in stops for item in found.findings) else CLEAN
