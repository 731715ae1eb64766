"""Expanding contract families, and the checks that one contract file must pass by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeVar

from kernelmap.errors import Diagnostic, nearest
from kernelmap.jsonsource import JsonSource
from kernelmap.models.contract import Contract, Port
from kernelmap.templates import TemplateError, fill, holes
from kernelmap.vocabulary import DTYPES, FORMATS, WEIGHT_FORMATS

P = TypeVar("P", bound=Port)


def expansions(contract: Contract) -> Iterator[Contract]:
    """One contract per format tuple with every template filled; the contract itself if it lists no formats."""
    if not contract.formats:
        yield contract
        return
    for formats in contract.formats:
        yield contract.model_copy(
            update={
                "equivalence_group": fill(contract.equivalence_group, formats),
                "inputs": tuple(_filled(port, formats) for port in contract.inputs),
                "weights": tuple(_filled(port, formats) for port in contract.weights),
                "state": tuple(_filled(port, formats) for port in contract.state),
                "outputs": tuple(_filled(port, formats) for port in contract.outputs),
                "arithmetic": {key: fill(text, formats) for key, text in contract.arithmetic.items()},
                "formats": (),
            }
        )


def _filled(port: P, formats: Mapping[str, str]) -> P:
    return port.model_copy(update={"dtype": fill(port.dtype, formats)}) if "{" in port.dtype else port


def alignment(contract: Contract) -> dict[str, int]:
    """Multiples that static dims must be: what block sizes imply and what the (expanded) contract adds."""
    found: dict[str, int] = {name: multiple for name, multiple in contract.alignment.items() if multiple > 1}
    for port in contract.weights:
        block = FORMATS[port.dtype].block_values if port.dtype in FORMATS else 1
        last = str(port.shape[-1]) if port.shape else ""
        if block > 1 and last in contract.dims:
            found[last] = math.lcm(found.get(last, 1), block)
    return found


def contract_problems(contract: Contract, source: JsonSource) -> list[Diagnostic]:
    """Everything that is wrong inside one contract file, before expansion."""
    checker = _Checker(contract, source)
    checker.ports()
    checker.names()
    checker.formats()
    return checker.found


class _Checker:
    def __init__(self, contract: Contract, source: JsonSource) -> None:
        self.contract, self.source = contract, source
        self.found: list[Diagnostic] = []
        self.weights = {port.name for port in contract.weights}

    def report(self, code: str, message: str, where: str, *, near: tuple[str, ...] = (), help: str = "") -> None:
        self.found.append(Diagnostic(code, message, place=self.source.place(where), near=near, help=help))

    def ports(self) -> None:
        seen: set[str] = {"threads"}
        dims = self.contract.dims
        for section in ("inputs", "weights", "state", "outputs"):
            for index, port in enumerate(getattr(self.contract, section)):
                where = f"/{section}/{index}"
                if port.name in seen:
                    self.report("KM221", f"port name {port.name!r} is used twice or reserved", f"{where}/name")
                seen.add(port.name)
                self.dtype(port, f"{where}/dtype")
                for axis, item in enumerate(port.shape):
                    for name in () if isinstance(item, int) else sorted(item.names):
                        if name not in dims:
                            near = nearest(name, dims)
                            self.report(
                                "KM222", f"shape names undeclared dim {name!r}", f"{where}/shape/{axis}", near=near
                            )
        for index, param in enumerate(self.contract.params):
            if param.name in seen:
                self.report(
                    "KM221", f"parameter name {param.name!r} is used twice or reserved", f"/params/{index}/name"
                )
            seen.add(param.name)

    def dtype(self, port: Port, where: str) -> None:
        dtype = port.dtype
        try:
            for name in holes(dtype):
                if name not in self.weights:
                    self.report("KM223", f"template names {name!r}, which is no weight port", where)
        except TemplateError as error:
            self.report("KM223", f"template: {error}", where)
            return
        if "{" in dtype or dtype in FORMATS or dtype in self.contract.dtype_vars:
            return
        known = (*FORMATS, *self.contract.dtype_vars)
        self.report("KM224", f"unknown dtype or format {dtype!r}", where, near=nearest(dtype, known))

    def names(self) -> None:
        contract = self.contract
        for index, name in enumerate(contract.dynamic_dims):
            if name not in contract.dims:
                self.report("KM222", f"dynamic_dims names undeclared dim {name!r}", f"/dynamic_dims/{index}")
        for name in contract.alignment:
            if name not in contract.static_dims:
                self.report("KM222", f"alignment names {name!r}, which is no static dim", f"/alignment/{name}")
        known = contract.static_dims | set(contract.params_by_name)
        for index, predicate in enumerate(contract.requires):
            for name in sorted(predicate.names - known):
                near = nearest(name, known)
                self.report("KM225", f"{name!r} is no static dim or parameter", f"/requires/{index}", near=near)
        for name, types in contract.dtype_vars.items():
            for index, item in enumerate(types):
                if item not in DTYPES:
                    self.report("KM224", f"unknown number type {item!r}", f"/dtype_vars/{name}/{index}")
        for index, port in enumerate(contract.weights):
            if not port.shape:
                self.report("KM222", f"weight {port.name!r} has no shape", f"/weights/{index}/shape")

    def formats(self) -> None:
        contract = self.contract
        templates = {"/equivalence_group": contract.equivalence_group}
        templates |= {f"/arithmetic/{key}": text for key, text in contract.arithmetic.items()}
        for where, template in templates.items():
            try:
                named = holes(template)
            except TemplateError as error:
                self.report("KM223", f"template: {error}", where)
                continue
            for name in named:
                if name not in self.weights or not contract.formats:
                    self.report("KM223", f"nothing fills {{{name}}}: formats lists no such weight port", where)
        wanted = {port.name for port in contract.weights if "{" in port.dtype}
        for index, formats in enumerate(contract.formats):
            where = f"/formats/{index}"
            for name in sorted(wanted - set(formats)):
                self.report("KM226", f"the tuple gives no format for {name!r}", where)
            for name, storage in formats.items():
                if name not in self.weights:
                    self.report(
                        "KM226", f"{name!r} is no weight port", f"{where}/{name}", near=nearest(name, self.weights)
                    )
                elif storage not in WEIGHT_FORMATS:
                    near = nearest(storage, WEIGHT_FORMATS)
                    self.report("KM224", f"unknown weight format {storage!r}", f"{where}/{name}", near=near)
        if len({tuple(sorted(formats.items())) for formats in contract.formats}) != len(contract.formats):
            self.report("KM226", "the same format tuple is listed twice", "/formats")
