"""Our GGUF reader against ``gguf.GGUFReader`` on a real file: every fact and every byte."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_builder import ARCHITECTURE, FP32, I32, STRING, U8, U16, U32, Gguf, array, key_value, tensor

from kernelmap.errors import KernelmapError
from kernelmap.inventory import open_tensor, read_inventory
from kernelmap.inventory.formats import ggml_format
from kernelmap.models.inventory import Inventory
from kernelmap.vocabulary import GGML_TYPES

MODEL = Path(__file__).parents[1] / "data/models/qwen35moe.gguf"


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    return read_inventory(MODEL)


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    return gguf.GGUFReader(MODEL)


def code_of(error: pytest.ExceptionInfo[KernelmapError]) -> list[str]:
    return [item.code for item in error.value.diagnostics]


def test_every_tensor_is_as_the_reference_reads_it(inventory: Inventory, reader: gguf.GGUFReader) -> None:
    ours = [(t.name, GGML_NUMBER[t.format], t.shape, t.offset, t.nbytes) for t in inventory.tensors]
    theirs = [
        (t.name, int(t.tensor_type), tuple(int(dim) for dim in reversed(t.shape)), t.data_offset, t.n_bytes)
        for t in reader.tensors
    ]
    assert ours == theirs
    assert len(ours) == 76


GGML_NUMBER = {item.name: number for number, item in GGML_TYPES.items()}


def test_every_byte_is_as_the_reference_reads_it(inventory: Inventory, reader: gguf.GGUFReader) -> None:
    for expected in reader.tensors:
        found = open_tensor(inventory, expected.name)
        assert found.shape == expected.data.shape
        assert found.dtype == expected.data.dtype
        assert np.array_equal(found.view(np.uint8), expected.data.view(np.uint8))
        assert not found.flags.writeable


def test_metadata_is_as_the_reference_reads_it(inventory: Inventory, reader: gguf.GGUFReader) -> None:
    expected = {}
    for key, item in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        value = item.contents()
        if key.startswith("tokenizer.") and isinstance(value, list):
            expected[f"{key}.count"] = len(value)
        else:
            expected[key] = tuple(value) if isinstance(value, list) else value
    assert dict(inventory.metadata) == expected
    assert inventory.architecture == "qwen35moe"
    assert inventory.metadata["tokenizer.ggml.tokens.count"] == 320
    assert inventory.metadata["qwen35moe.rope.dimension_sections"] == (6, 5, 5, 0)


def test_experts_are_row_major(inventory: Inventory) -> None:
    info = inventory.tensor("blk.0.ffn_gate_exps.weight")
    assert (info.format, info.shape) == ("q4_k", (8, 256, 256))
    assert open_tensor(inventory, info.name).shape == (8, 256, 144)


@pytest.mark.parametrize("number", sorted(GGML_TYPES))
def test_sizes_are_ggml_s(number: int) -> None:
    known = GGML_TYPES[number]
    kind = gguf.GGMLQuantizationType(number)
    expected = tuple(gguf.GGML_QUANT_SIZES[kind])
    if kind.name == "Q8_1":  # gguf-py still has the two fp32 of an older block_q8_1; ggml-common.h has two fp16
        expected = (32, 36)
    assert (known.block_values, known.block_bytes) == expected


def test_a_type_that_only_gguf_knows_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "iq.gguf"
    path.write_bytes(Gguf(tensors=[tensor("w", (256, 2), 23, 0)], data=bytes(range(256)) * 2).build())
    info = read_inventory(path).tensor("w")
    assert (info.format, info.shape, info.nbytes) == ("iq4_xs", (2, 256), 272)
    assert open_tensor(read_inventory(path), "w").shape == (2, 136)
    assert ggml_format(4) is None


def test_version_2_and_alignment(tmp_path: Path) -> None:
    path = tmp_path / "v2.gguf"
    keys = [ARCHITECTURE, key_value("general.alignment", U32, 1)]
    tensors = [tensor("a", (1,), 24, 0), tensor("b", (2,), FP32, 1)]
    data = b"\x07" + struct.pack("<2f", 1.5, -2.0)
    path.write_bytes(Gguf(keys=keys, tensors=tensors, data=data, alignment=1, version=struct.pack("<I", 2)).build())
    inventory = read_inventory(path)
    assert open_tensor(inventory, "a").tolist() == [7]
    found = open_tensor(inventory, "b")
    assert found.tolist() == [1.5, -2.0]
    assert found.flags.aligned
    assert not found.flags.writeable


def test_long_values_are_reduced_to_counts(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    keys = [
        ARCHITECTURE, key_value("tokenizer.chat_template", STRING, "x" * 5000), array("big", U8, [1] * 5000),
        array("layers", I32, [3, 4]), array("names", STRING, ["p", "q"]),
    ]  # fmt: skip
    path.write_bytes(Gguf(keys=keys).build())
    assert dict(read_inventory(path).metadata) == {
        "general.architecture": "toy",
        "tokenizer.chat_template.count": 5000,
        "big.count": 5000,
        "layers": (3, 4),
        "names": ("p", "q"),
    }


def write_shards(folder: Path, count: int = 3, *, skip: int = -1, **wrong: int) -> Path:
    """One tensor a shard; ``wrong`` replaces split values of the second shard."""
    for index in range(count):
        values = {"split.no": index, "split.count": count, "split.tensors.count": count}
        if index == 1:
            values |= {key.replace("_", "."): value for key, value in wrong.items() if key != "name"}
        keys = [key_value(key, U16, value) for key, value in values.items()]
        name = f"t{wrong['name']}" if index == 1 and "name" in wrong else f"t{index}"
        part = Gguf(
            keys=([ARCHITECTURE, key_value("toy.block_count", U32, 3)] if index == 0 else []) + keys,
            tensors=[tensor(name, (4,), FP32, 0)],
            data=struct.pack("<4f", *[float(index)] * 4),
        )
        if index != skip:
            (folder / f"m-{index + 1:05d}-of-{count:05d}.gguf").write_bytes(part.build())
    return folder / f"m-00001-of-{count:05d}.gguf"


def test_shards_are_one_model(tmp_path: Path) -> None:
    first = write_shards(tmp_path)
    inventory = read_inventory(first)
    assert inventory.names == ("t0", "t1", "t2")
    assert len(inventory.files) == 3
    assert [open_tensor(inventory, name)[0] for name in inventory.names] == [0.0, 1.0, 2.0]
    assert read_inventory(first.with_name("m-00002-of-00003.gguf")).digest == inventory.digest
    assert read_inventory(tmp_path).digest == inventory.digest
    whole = tmp_path / "whole.gguf"
    tensors = [tensor(f"t{index}", (4,), FP32, 32 * index) for index in range(3)]
    whole.write_bytes(Gguf(keys=[ARCHITECTURE, key_value("toy.block_count", U32, 3)], tensors=tensors).build())
    assert read_inventory(whole).digest == inventory.digest


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        ({"skip": 1}, "KM617", "m-00002-of-00003.gguf"),
        ({"skip": 2}, "KM617", "m-00003-of-00003.gguf"),
        ({"split_count": 4}, "KM618", "split.count"),
        ({"split_no": 2}, "KM618", "split.no"),
        ({"split_tensors_count": 9}, "KM618", "split.tensors.count"),
        ({"name": 0}, "KM613", "'t0' is in m-00001-of-00003.gguf too"),
    ],
)
def test_wrong_shards_are_refused(arguments: dict[str, int], code: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(KernelmapError) as caught:
        read_inventory(write_shards(tmp_path, **arguments))
    assert code_of(caught) == [code]
    assert part in str(caught.value)


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-99999.gguf"])
def test_impossible_shard_numbers(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(Gguf().build())
    with pytest.raises(KernelmapError) as caught:
        read_inventory(tmp_path / name)
    assert code_of(caught) == ["KM618"]


def test_a_changed_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(Gguf().build())
    inventory = read_inventory(path)
    views = [open_tensor(inventory, "a")]
    os.utime(path, ns=(1, 1))
    for _ in range(2):  # while a view keeps the map alive, and after
        with pytest.raises(KernelmapError) as caught:
            open_tensor(inventory, "b")
        assert code_of(caught) == ["KM621"]
        views.clear()
    path.unlink()
    with pytest.raises(KernelmapError) as caught:
        open_tensor(inventory, "b")
    assert code_of(caught) == ["KM601"]


def test_unknown_tensor_has_near_names(inventory: Inventory) -> None:
    with pytest.raises(KernelmapError) as caught:
        open_tensor(inventory, "blk.0.ffn_gate_exp.weight")
    assert code_of(caught) == ["KM620"]
    assert caught.value.diagnostics[0].near[0] == "blk.0.ffn_gate_exps.weight"
