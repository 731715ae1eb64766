"""A circuit's reference inventory, expanded from its ``{layer}`` patterns."""

from __future__ import annotations

from collections.abc import Iterator

from kernelmap.circuit.facts import Facts, facts_of
from kernelmap.circuit.weights import tensor_name
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.expressions import ExpressionError
from kernelmap.jsonsource import JsonSource
from kernelmap.models.circuit import Circuit, Storage, StorageTensor
from kernelmap.models.inventory import Inventory, TensorInfo
from kernelmap.vocabulary import FORMATS


def reference_inventory(circuit: Circuit, source: JsonSource) -> Inventory:
    """The inventory that ``storage`` describes. Raises KernelmapError if there is none or it is wrong."""
    storage = circuit.storage
    if storage is None:
        place = source.place("")
        help = "give a model file (--model)"
        raise KernelmapError(Diagnostic("KM321", f"{circuit.id} has no reference storage", place=place, help=help))
    bare = Inventory(
        schema_version=1, architecture=storage.architecture, metadata=dict(storage.metadata), tensors=(), files=()
    )
    facts = facts_of(circuit, source, bare, {}, with_tensors=False)
    if facts.problems:
        raise KernelmapError(facts.problems)  # everything else would only repeat these
    tensors = tuple(_tensors(storage, facts))
    names = [tensor.name for tensor in tensors]
    for name in sorted({name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()):
        facts.report("KM321", f"reference storage names tensor {name} twice", "/storage/tensors")
    if facts.problems:
        raise KernelmapError(facts.problems)
    return bare.model_copy(update={"tensors": tensors})


def _tensors(storage: Storage, facts: Facts) -> Iterator[TensorInfo]:
    for index, item in enumerate(storage.tensors):
        where = f"/storage/tensors/{index}"
        if item.format not in FORMATS:
            near = nearest(item.format, FORMATS)
            facts.report("KM321", f"unknown format {item.format!r}", f"{where}/format", near=near)
            continue
        layers: tuple[int | None, ...] = (None,)
        if "{layer}" in item.name:
            layers = tuple(range(facts.layer_count))
        for layer in layers:
            if _present(item, layer, facts, where):
                yield from _tensor(item, layer, facts, where)


def _present(item: StorageTensor, layer: int | None, facts: Facts, where: str) -> bool:
    if item.when is None:
        return True
    try:
        return item.when.evaluate(facts.env(layer))
    except ExpressionError as error:
        facts.report(error.code, f"{item.when}: {error.message}", f"{where}/when")
        return False


def _tensor(item: StorageTensor, layer: int | None, facts: Facts, where: str) -> Iterator[TensorInfo]:
    env = facts.env(layer)
    sizes = [facts.scalar(size, env, f"{where}/shape/{axis}") for axis, size in enumerate(item.shape)]
    shape = tuple(size for size in sizes if size is not None)
    if len(shape) != len(sizes):
        return
    nbytes = 1
    for size in shape[:-1]:
        nbytes *= size
    try:
        nbytes *= FORMATS[item.format].row_bytes(shape[-1]) if shape else FORMATS[item.format].block_bytes
    except ValueError as error:
        facts.report("KM321", f"{item.name}: {error}", f"{where}/shape")
        return
    yield TensorInfo(name=tensor_name(item.name, layer), format=item.format, shape=shape, nbytes=nbytes)
