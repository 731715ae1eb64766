"""Capturing calls: everything that a kernel was given and made, in a safetensors file that `replay` reads.

Tensors are ``input.NAME``, ``weight.NAME`` (as stored in the model, not as prepared), ``state.NAME`` (before the call),
``output.NAME`` and ``after.NAME`` (written state after the call). The metadata's ``kernelmap`` is a `Capture`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernelmap.bind import BoundPlan
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.files import whole_file
from kernelmap.inventory import open_tensor
from kernelmap.models.tracing import Capture
from kernelmap.session import OpCall, Probe
from kernelmap.source_digests import map_source_digest
from kernelmap.tracing.choosing import Wanted

Array = np.ndarray[Any, Any]
METADATA_KEY = "kernelmap"


class Capturer:
    """A probe of a session that saves the first call of each wanted op, layer and phase into ``folder``.

    Files are ``OP[.LAYER].PHASE.safetensors``, each written whole or not at all; those of earlier runs are replaced.
    """

    def __init__(self, bound: BoundPlan, wanted: frozenset[Wanted], folder: Path) -> None:
        self.bound, self.folder = bound, folder
        self.open: set[Wanted] = set(wanted)
        self.files: dict[Wanted, Path] = {}

    def __call__(self, call: OpCall) -> Callable[[int], None] | None:
        """Keeps what a wanted call is given, and returns what saves it once it is done."""
        key = (call.bound.decision.name, call.bound.instance.layer, call.bound.phase)
        if key not in self.open:
            return None
        self.open.discard(key)
        tensors = {f"input.{name}": a.copy() for name, a in call.inputs.items() if a is not None}
        tensors |= {f"state.{name}": a.copy() for name, a in call.state.items() if a is not None}
        tensors |= {f"weight.{name}": a for name, a in self._weights(call).items()}

        def after(status: int) -> None:
            if status == 0:
                written = {port.name for port in call.bound.instance.shared.contract.state if port.access != "read"}
                tensors.update({f"output.{name}": a for name, a in call.outputs.items()})
                tensors.update(
                    {f"after.{name}": a for name, a in call.state.items() if a is not None and name in written}
                )
            path = self.folder / file_name(key)
            save(path, tensors, self._facts(call, status))
            self.files[key] = path

        return after

    def uncalled(self) -> list[Diagnostic]:
        """One problem for each wanted call that nothing made."""
        missing = sorted((op, -1 if layer is None else layer, phase) for op, layer, phase in self.open)
        return [
            Diagnostic("KM577", f"capture {op}{'' if layer < 0 else f'@{layer}'}: no call in phase {phase.value}")
            for op, layer, phase in missing
        ]

    def _weights(self, call: OpCall) -> dict[str, Array]:
        """The weights as the model stores them, whatever form the provider runs on."""
        found = {}
        for port, weight in call.bound.instance.weights.items():
            array = open_tensor(self.bound.elaborated.inventory, weight.tensor.name)
            found[port] = array if weight.rows is None else array[..., weight.rows[0] : weight.rows[1], :]
        return found

    def _facts(self, call: OpCall, status: int) -> Capture:
        op, shared = call.bound, call.bound.instance.shared
        return Capture(
            schema_version=1, circuit=self.bound.plan.circuit, op=op.decision.name, layer=op.instance.layer,
            phase=op.phase, provider=op.map.id, variant=call.variant, group=shared.group,
            contract=shared.contract.digest, map=op.map.digest, sources=map_source_digest(op.map),
            plan=self.bound.plan.digest, threads=call.threads, status=status, dims=dict(call.dims),
            params=dict(shared.params), dtypes=dict(shared.dtypes),
        )  # fmt: skip


def file_name(wanted: Wanted) -> str:
    """``routed_experts.3.prefill.safetensors``."""
    op, layer, phase = wanted
    return f"{op}{'' if layer is None else f'.{layer}'}.{phase.value}.safetensors"


def save(path: Path, tensors: Mapping[str, Array], facts: Capture) -> None:
    """Writes a capture whole or not at all. Raises KernelmapError (KM572) if it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    plain = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    text = facts.model_dump_json(by_alias=True, exclude={"schema_ref"})
    try:
        with whole_file(path, "KM572") as file:
            save_file(plain, file.name, metadata={METADATA_KEY: text})
    except SafetensorError as error:
        raise KernelmapError(Diagnostic("KM572", f"cannot write {path}: {error}")) from None


def all_of(*probes: Probe | None) -> Probe | None:
    """One probe that asks several in turn; None if there are none."""
    chosen = [probe for probe in probes if probe is not None]
    if len(chosen) < 2:
        return chosen[0] if chosen else None

    def probe(call: OpCall) -> Callable[[int], None]:
        afters = [after for item in chosen if (after := item(call)) is not None]

        def after_all(status: int) -> None:
            for after in afters:
                after(status)

        return after_all

    return probe
