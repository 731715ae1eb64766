"""Reading captures: everything in the file is doubted, and what is wrong has its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernelmap.certify.corpus import shape_of
from kernelmap.contracts import alignment
from kernelmap.errors import Diagnostic, KernelmapError, Place, nearest
from kernelmap.expressions import Env, ExpressionError
from kernelmap.inventory import open_tensor, read_inventory
from kernelmap.inventory.files import mapped
from kernelmap.inventory.safetensors_file import read_safetensors
from kernelmap.jsonsource import JsonSource, parse_json
from kernelmap.models.contract import Contract, Port
from kernelmap.models.loading import validate
from kernelmap.models.tracing import Capture
from kernelmap.registry import Registry
from kernelmap.session import NUMPY_TYPES
from kernelmap.tracing.capture import METADATA_KEY
from kernelmap.vocabulary import FORMATS
from kernelmap.weight_checks import weight_problems

Array = np.ndarray[Any, Any]
MAX_DIM = 2**31


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """A capture whose tensors, dims and params fit the contract of its group."""

    path: Path
    facts: Capture
    contract: Contract
    given: Mapping[str, Array | None]
    """Input, weight and state ports."""
    recorded: Mapping[str, Array]
    """Outputs and written state after the call; empty if the kernel refused its input."""


def read_capture(path: Path, registry: Registry) -> CapturedCall:
    """A capture file.

    Raises KernelmapError: KM601 to KM619 for a file that is damaged, KM573 no capture, schema errors of its metadata
    with their places, KM575 another contract, KM574 for everything that does not fit the contract,
    KM511 weights that are not finite.
    """
    with mapped(path) as file:
        start = file.data[:9]
    if start[8:9] != b"{":
        read_inventory(path)  # a file of another kind, or a damaged one, is named as what it is
        raise _no_capture(path, "it is no safetensors file")
    inventory = read_safetensors(path)
    text = inventory.metadata.get(METADATA_KEY)
    if not isinstance(text, str):
        raise _no_capture(path, f"its metadata has no {METADATA_KEY!r}")
    source = parse_json(text.encode("utf-8"), f"{path} ({METADATA_KEY})")
    facts = validate(source, Capture)
    reading = _Reading(path, source, facts, _contract(path, facts, registry))
    reading.facts_fit()
    if not reading.problems:
        reading.tensors_fit({tensor.name: (tensor.format, tensor.shape) for tensor in inventory.tensors})
    if reading.problems:
        raise KernelmapError(reading.problems)
    arrays = {
        tensor.name: _plain(open_tensor(inventory, tensor.name), tensor.format, tensor.shape)
        for tensor in inventory.tensors
    }
    reading.weights_fit(arrays)
    if reading.problems:
        raise KernelmapError(reading.problems)
    return _call(path, facts, reading.contract, arrays)


def _contract(path: Path, facts: Capture, registry: Registry) -> Contract:
    contract = registry.contracts.get(facts.group)
    if contract is not None and contract.digest == facts.contract:
        return contract
    now = contract.digest if contract is not None else "none"
    message = f"{path}: the contract {facts.group} is not the one of the capture"
    near = nearest(facts.group, registry.contracts) if contract is None else ()
    place = Place(str(path))
    raise KernelmapError(Diagnostic("KM575", message, place=place, expected=facts.contract, found=now, near=near))


def _call(path: Path, facts: Capture, contract: Contract, arrays: Mapping[str, Array]) -> CapturedCall:
    given = {
        port.name: arrays.get(f"{kind}.{port.name}")
        for kind, ports in (("input", contract.inputs), ("weight", contract.weights), ("state", contract.state))
        for port in ports
    }
    recorded = {
        name.partition(".")[2]: array for name, array in arrays.items() if name.startswith(("output.", "after."))
    }
    return CapturedCall(path, facts, contract, given, recorded)


def _no_capture(path: Path, why: str) -> KernelmapError:
    help = "kernelmap run MODEL --capture OP@LAYER --capture-dir DIR makes one"
    return KernelmapError(Diagnostic("KM573", f"{path} is no capture: {why}", place=Place(str(path)), help=help))


def _plain(array: Array, stored: str, shape: tuple[int, ...]) -> Array:
    """The array of a tensor; bf16's bits, which the file's reader knows as bytes only, as uint16."""
    return array.view(np.uint16).reshape(shape) if stored == "u16" else array


@dataclass(slots=True)
class _Reading:
    path: Path
    source: JsonSource
    facts: Capture
    contract: Contract
    problems: list[Diagnostic] = field(default_factory=list)

    def report(self, what: str, pointer: str, expected: str = "", found: str = "") -> None:
        place = self.source.place(pointer) if pointer else Place(str(self.path))
        self.problems.append(Diagnostic("KM574", what, place=place, expected=expected, found=found))

    def facts_fit(self) -> None:
        """Dims, params and dtypes are those that the contract declares, and its requirements hold."""
        contract, facts = self.contract, self.facts
        for kind, have, want in (
            ("dims", set(facts.dims), set(contract.dims)),
            ("params", set(facts.params), set(contract.params_by_name)),
        ):
            if have != want:
                self.report(f"{kind} are not the contract's", f"/{kind}", _listed(want), _listed(have))
        multiples = alignment(contract)
        for name, size in facts.dims.items():
            if not 0 <= size < MAX_DIM or size % multiples.get(name, 1):
                expected = f"0 to {MAX_DIM - 1}, a multiple of {multiples.get(name, 1)}"
                self.report(f"dim {name} is impossible", f"/dims/{name}", expected, str(size))
        for name, value in facts.params.items():
            param = contract.params_by_name.get(name)
            if param is not None and (why := param.refusal(value)):
                self.report(why, f"/params/{name}")
        self._dtypes_fit()
        if self.problems:
            return
        env = Env(names={**facts.dims, **facts.params})
        for predicate in contract.requires:
            try:
                held = predicate.evaluate(env)
            except ExpressionError as error:
                self.report(f"a requirement of the contract cannot be checked: {error.message}", "/dims")
                continue
            if not held:
                self.report(f"the contract requires {predicate}", "/dims")

    def _dtypes_fit(self) -> None:
        dtypes, contract = self.facts.dtypes, self.contract
        for name in sorted(set(dtypes) - set(contract.ports)):
            self.report(f"the contract has no port {name!r}", f"/dtypes/{name}")
        for name, port in contract.ports.items():
            allowed = contract.dtype_vars.get(port.dtype, (port.dtype,))
            have = dtypes.get(name)
            if have is None and not port.optional:
                self.report(f"port {name} has no dtype", "/dtypes", expected=" or ".join(allowed))
            elif have is not None and have not in allowed:
                self.report(f"port {name} has another dtype", f"/dtypes/{name}", " or ".join(allowed), have)

    def tensors_fit(self, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Every tensor that must be there is, with the dtype and shape of its port, and no other is."""
        wanted = dict(self._wanted())
        for name in sorted(set(tensors) - set(wanted)):
            self.report(f"tensor {name!r} is none of the captured call", "", found=str(tensors[name][1]))
        for name, (dtype, shape) in wanted.items():
            if name not in tensors:
                self.report(f"tensor {name!r} is missing", "", expected=f"{dtype} {list(shape)}")
            elif tensors[name] != (dtype, shape):
                have = f"{tensors[name][0]} {list(tensors[name][1])}"
                self.report(f"tensor {name!r} does not fit", "", expected=f"{dtype} {list(shape)}", found=have)

    def weights_fit(self, arrays: Mapping[str, Array]) -> None:
        """No weight block has a factor that is not finite: no kernel is asked to cope with those."""
        for port in self.contract.weights:
            array = arrays.get(f"weight.{port.name}")
            if array is not None:
                found = weight_problems(f"weight.{port.name}", self.facts.dtypes[port.name], array)
                self.problems += [replace(problem, place=Place(str(self.path))) for problem in found]

    def _wanted(self) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
        contract, facts = self.contract, self.facts
        sides: list[tuple[str, Port]] = [("input", port) for port in contract.inputs]
        sides += [("weight", port) for port in contract.weights]
        sides += [("state", port) for port in contract.state]
        if facts.status == 0:
            sides += [("output", port) for port in contract.outputs]
            sides += [("after", port) for port in contract.state if port.access != "read"]
        for side, port in sides:
            if port.name not in facts.dtypes:
                continue  # an optional port that the circuit left out
            try:
                shape = shape_of(port, facts.dims)
            except ExpressionError as error:
                self.report(f"the shape of {port.name} cannot be computed: {error.message}", "/dims")
                continue
            yield f"{side}.{port.name}", _stored(facts.dtypes[port.name], shape)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _stored(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """(dtype, shape) in the file: block formats are bytes, bf16 is its bits."""
    if dtype in NUMPY_TYPES:
        return ("u16" if dtype == "bf16" else dtype), shape
    return "u8", (*shape[:-1], FORMATS[dtype].row_bytes(shape[-1]))
