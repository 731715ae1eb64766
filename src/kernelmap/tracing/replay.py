"""Replaying a captured call: through a provider of its group, or the group's reference, against what was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmap.certify.corpus import Case
from kernelmap.certify.trial import Subject
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.models.host import Host
from kernelmap.models.kernel_map import KernelMap, Variant
from kernelmap.models.tracing import Difference
from kernelmap.registry import Registry
from kernelmap.spec import BuildSpec
from kernelmap.tracing.beside import UNWRITTEN, compare
from kernelmap.tracing.captured import CapturedCall
from kernelmap.vocabulary import Device

Array = np.ndarray[Any, Any]
ORACLE = "oracle"
"""What names the group's reference among providers."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A provider's variant on the captured call; ``skipped`` says why it did not run."""

    provider: str
    variant: str
    status: int = 0
    differences: tuple[Difference, ...] = ()
    faults: tuple[str, ...] = ()
    worst: float = 0.0
    skipped: str = ""

    @property
    def agrees(self) -> bool:
        """Whether it ran and gave what was recorded, as far as the contract asks."""
        return not (self.skipped or self.differences or self.faults)


def replay(
    call: CapturedCall, registry: Registry, host: Host, provider: str, *, threads: int, switches: Sequence[str] = ()
) -> tuple[Replayed, ...]:
    """Every variant of a provider (or the reference, `ORACLE`) that may run these dims on this host.

    ``switches`` are the kill switches that are set. Raises KernelmapError: KM457 unknown, KM459 another group, KM576
    with the reason if no variant may run.
    """
    if provider == ORACLE:
        return (_oracle(call, host),)
    item = registry.maps.get(provider)
    if item is None:
        near = nearest(provider, (*registry.maps, ORACLE))
        raise KernelmapError(Diagnostic("KM457", f"no provider is called {provider!r}", near=near))
    group = item.selection.equivalence_group
    if group != call.facts.group:
        message = f"{provider} is of another group than the captured call"
        raise KernelmapError(Diagnostic("KM459", message, expected=call.facts.group, found=group))
    found = tuple(_of_provider(call, item, host, threads, switches))
    if all(row.skipped for row in found):
        why = "; ".join(row.skipped for row in found)
        raise KernelmapError(Diagnostic("KM576", f"{provider} cannot run the call: {why}"))
    return found


def replay_all(
    call: CapturedCall, registry: Registry, host: Host, *, threads: int, switches: Sequence[str] = ()
) -> Iterator[Replayed]:
    """The reference, then every variant of every provider of the group; those that cannot run say why."""
    yield _oracle(call, host)
    for item in registry.ladders.get(call.facts.group, ()):
        yield from _of_provider(call, item, host, threads, switches)


def _of_provider(
    call: CapturedCall, item: KernelMap, host: Host, threads: int, switches: Sequence[str]
) -> Iterator[Replayed]:
    if why := _unfit(call, item, host):
        yield Replayed(item.id, "", skipped=why)
        return
    for variant in item.impl.variants:
        if why := _variant_unfit(call, variant, host, switches):
            yield Replayed(item.id, variant.name, skipped=why)
        else:
            yield _run(call, item, variant, host, threads)


def _unfit(call: CapturedCall, item: KernelMap, host: Host) -> str:
    """Why the provider cannot run the call here, as the resolver would say it; its status does not matter."""
    if not item.executable:
        return "foreign: not executable"
    missing = [feature for feature in item.requires.isa if feature not in host.isa]
    if missing:
        return f"host lacks {', '.join(missing)}"
    if item.requires.device is not Device.ANY and item.requires.device.value not in host.devices:
        return f"host has no {item.requires.device.value}"
    if call.facts.phase not in item.selection.phases:
        return f"not for {call.facts.phase.value}"
    needs = [limit.refusal(name, call.facts.dims[name]) for name, limit in item.constraints.dims.items()]
    return f"needs {' and '.join(filter(None, needs))}" if any(needs) else ""


def _variant_unfit(call: CapturedCall, variant: Variant, host: Host, switches: Sequence[str]) -> str:
    if variant.kill_switch in switches:
        return f"{variant.kill_switch} is set"
    if missing := [feature for feature in variant.requires if feature not in host.isa]:
        return f"host lacks {', '.join(missing)}"
    return "" if variant.admits(call.facts.dims) else "its guards do not admit these dims"


def _run(call: CapturedCall, item: KernelMap, variant: Variant, host: Host, threads: int) -> Replayed:
    try:
        subject = Subject(item, variant, _case(call, host, variant.name, item))
        status, made, faults = subject.call(threads, UNWRITTEN)
    except KernelmapError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a provider does, it is told of that provider
        return Replayed(item.id, variant.name, faults=(f"raises {type(error).__name__}: {error}"[:500],))
    return _compared(call, item.id, variant.name, status, made, faults)


def _oracle(call: CapturedCall, host: Host) -> Replayed:
    try:
        status, made = _case(call, host, ORACLE, None).expected()
    except KernelmapError:
        raise
    except Exception as error:  # noqa: BLE001  # the same of the reference
        return Replayed(ORACLE, "", faults=(f"raises {type(error).__name__}: {error}"[:500],))
    return _compared(call, ORACLE, "", status, made, [])


def _compared(
    call: CapturedCall, provider: str, variant: str, status: int, made: Mapping[str, Array], faults: list[str]
) -> Replayed:
    if status != call.facts.status:
        faults = [*faults, f"status {status}, and the recorded one is {call.facts.status}"]
        return Replayed(provider, variant, status, faults=tuple(faults))
    if status:
        return Replayed(provider, variant, status, faults=tuple(faults))
    made = {name: np.asarray(array) for name, array in made.items()}
    for name, array in call.recorded.items():
        have = made.get(name)
        if have is None or (have.dtype, have.shape) != (array.dtype, array.shape):
            what = "nothing" if have is None else f"{have.dtype} {list(have.shape)}"
            faults = [*faults, f"{name} is {what}, and the recorded one {array.dtype} {list(array.shape)}"]
    if faults:
        return Replayed(provider, variant, status, faults=tuple(faults))
    differences, worst = compare(call.contract, call.recorded, made)
    return Replayed(provider, variant, status, differences, (), worst)


def _case(call: CapturedCall, host: Host, variant: str, item: KernelMap | None) -> Case:
    facts, contract = call.facts, call.contract
    hooks = item.weight_preparation if item is not None else ()
    spec = BuildSpec(
        provider=item.id if item is not None else ORACLE,
        group=facts.group,
        op=contract.op,
        variant=variant,
        dtypes=dict(facts.dtypes),
        dims={name: size for name, size in facts.dims.items() if name in contract.static_dims},
        params=dict(facts.params),
        prepared={port: hook.prepared_format for hook in hooks for port in hook.weights},
        arithmetic=dict(contract.arithmetic),
        isa=tuple(sorted(host.isa)),
    )
    return Case(f"{facts.op} ({facts.phase.value})", spec, contract, facts.dims, call.given)
