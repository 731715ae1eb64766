"""Running a chosen provider on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelmap.bind import BoundOp
from kernelmap.errors import Diagnostic
from kernelmap.ops.arguments import NUMBER_TYPES, Fit, OpInputError, fit
from kernelmap.ops.selection import Chooser, Request
from kernelmap.session import select_variant
from kernelmap.vocabulary import Phase

if TYPE_CHECKING:
    import torch


def call(chooser: Chooser, group: str, given: Mapping[str, torch.Tensor], rows: str) -> dict[str, torch.Tensor]:
    """Outputs by port, new tensors on the inputs' device, of the provider that is chosen for these tensors.

    ``rows`` names the dim that counts tokens: one of them is a decode step, any other number prefill. Nothing of
    ``given`` is written. Raises OpInputError (KM551 to KM554), NoProviderError, or BindError.
    """
    import torch

    contract = chooser.registry.contracts[group]
    found = fit(contract, given)
    first = given[contract.inputs[0].name]
    request = Request(
        group,
        Phase.DECODE if found.dims[rows] == 1 else Phase.PREFILL,
        first.device.type,
        tuple(found.dtypes.items()),
        tuple((name, size) for name, size in found.dims.items() if name in contract.static_dims),
    )
    bound = chooser.bound(request)
    variant, _ = select_variant(bound, found.dims)
    types = {value: name for name, value in NUMBER_TYPES.items()}
    outputs = {
        port.name: torch.empty(
            [size if isinstance(size, int) else size.evaluate(found.dims) for size in port.shape],
            dtype=getattr(torch, types[found.dtypes[port.name]].removeprefix("torch.")),
            device=first.device,
        )
        for port in contract.outputs
    }
    threads = torch.get_num_threads()
    tensors = [*(given[port.name].detach() for port in (*contract.inputs, *contract.weights)), *outputs.values()]
    arrays = tensors if bound.map.impl.backend == "torch" else [_array(tensor) for tensor in tensors]
    status = variant.run(*arrays, *_scratch(bound, found, threads), threads)
    if status:
        raise OpInputError(_refused(bound, status - 1))
    return outputs


def _array(tensor: torch.Tensor) -> Any:
    """The numpy array that shares a CPU tensor's memory; bf16 as uint16 bit patterns."""
    import numpy as np
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def _scratch(bound: BoundOp, found: Fit, threads: int) -> list[Any]:
    """Working memory as the map declares it."""
    import numpy as np

    pieces = []
    for item in bound.map.scratch:
        size = item.size_bytes.evaluate({**found.dims, "threads": threads})
        whole = np.empty(size + item.alignment, np.uint8)
        start = -whole.ctypes.data % item.alignment
        pieces.append(whole[start : start + size])
    return pieces


def _refused(bound: BoundOp, row: int) -> Diagnostic:
    message = f"{bound.decision.name}: {bound.map.id} refuses token {row}"
    return Diagnostic("KM554", message, help="an index that is out of range")
