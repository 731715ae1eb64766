"""safetensors files: real ones against the library, malformed ones refused."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kernelmap.errors import KernelmapError
from kernelmap.inventory import open_tensor, read_inventory
from kernelmap.inventory.safetensors_file import read_safetensors


def write(path: Path, header: object, data: bytes = bytes(64), length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def entry(start: int, stop: int, dtype: object = "F32", shape: object = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [(stop - start) // 4] if shape is None else shape, "data_offsets": [start, stop]}


CASES: dict[str, tuple[bytes | dict[str, object], int | None, str, str]] = {
    # name: (header, header length, code, part of the message)
    "length of 2**63": (b"{}", 2**63, "KM604", "header, which begins at byte 8"),
    "length past end": (b"{}", 1000, "KM604", "header, which begins at byte 8"),
    "length of 0": (b"", 0, "KM619", "not JSON"),
    "not JSON": (b"{'a': 1}", None, "KM619", "not JSON"),
    "not UTF-8": (b'{"\xff": 1}', None, "KM619", "not JSON"),
    "deep nesting": (b'{"a":' * 50_000, None, "KM619", "not JSON"),
    "huge number": (b'{"a": ' + b"9" * 10_000 + b"}", None, "KM619", "not JSON"),
    "a list": (b"[1, 2]", None, "KM619", "object"),
    "a name twice": (
        b'{"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}',
        None, "KM613", "'a'",
    ),
    "entry is a number": ({"a": 5}, None, "KM619", "'a'"),
    "field missing": ({"a": {"dtype": "F32", "shape": [16]}}, None, "KM619", "'a'"),
    "field too many": ({"a": {**entry(0, 64), "stride": 1}}, None, "KM619", "'a'"),
    "unknown dtype": ({"a": entry(0, 64, "F31")}, None, "KM612", "'a'"),
    "dtype is a list": ({"a": entry(0, 64, ["F32"])}, None, "KM612", "'a'"),
    "negative dim": ({"a": entry(0, 64, shape=[-4, -4])}, None, "KM611", "'a'"),
    "dim is a text": ({"a": entry(0, 64, shape=["16"])}, None, "KM611", "'a'"),
    "dims overflow": ({"a": entry(0, 64, shape=[2**40, 2**40])}, None, "KM611", "'a'"),
    "9 dims": ({"a": entry(0, 64, shape=[16] + [1] * 8)}, None, "KM611", "'a'"),
    "past end": ({"a": entry(0, 128)}, None, "KM615", "'a'"),
    "offsets reversed": ({"a": {**entry(0, 64), "data_offsets": [64, 0]}}, None, "KM615", "'a'"),
    "offsets too near": ({"a": {**entry(0, 64), "data_offsets": [0, 60]}}, None, "KM615", "'a'"),
    "three offsets": ({"a": {**entry(0, 64), "data_offsets": [0, 32, 64]}}, None, "KM615", "'a'"),
    "overlap": ({"a": entry(0, 48), "b": entry(32, 64)}, None, "KM616", "'a' and 'b'"),
    "a hole": ({"a": entry(0, 16), "b": entry(32, 64)}, None, "KM619", "library"),
    "metadata no text": ({"__metadata__": {"a": 1}, "a": entry(0, 64)}, None, "KM606", "__metadata__"),
    "metadata surrogate": (b'{"__metadata__":{"a":"\\ud800"}}', None, "KM606", "__metadata__"),
    "name with an escape": ({"\x1b[2J": entry(0, 64)}, None, "KM608", "\\x1b[2J"),
    "name a surrogate": (b'{"\\ud800":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}', None, "KM608", "\\ud800"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_malformed_file_is_refused(name: str, tmp_path: Path) -> None:
    header, length, code, part = CASES[name]
    path = write(tmp_path / "bad.safetensors", header, length=length)
    tracemalloc.start()
    with pytest.raises(KernelmapError) as caught:
        read_safetensors(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found = caught.value.diagnostics
    assert any(item.code == code and part in item.message for item in found), [str(item) for item in found]
    assert all(item.place is not None and item.place.file == str(path) for item in found)
    assert peak < 8 * 2**20


def test_seven_bytes(tmp_path: Path) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(b"1234567")
    with pytest.raises(KernelmapError, match="KM604"):
        read_safetensors(path)


def test_header_over_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path / "big.safetensors", b" " * (2**23 + 1))
    with pytest.raises(KernelmapError, match="KM605"):
        read_safetensors(path)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    header = {"a": entry(0, 64, "F31"), "b": entry(0, 64, shape=[-1]), "c": 1}
    with pytest.raises(KernelmapError) as caught:
        read_safetensors(write(tmp_path / "bad.safetensors", header))
    assert [item.code for item in caught.value.diagnostics] == ["KM612", "KM611", "KM619"]


def arrays() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(5)
    return {
        "router.weight": chance.standard_normal((4, 8)).astype(np.float32),
        "half": chance.standard_normal((3, 2)).astype(np.float16),
        "blocks": chance.integers(0, 255, (2, 3, 16)).astype(np.uint8),
        "flags": np.array([True, False, True]),
        "ids": np.arange(5, dtype=np.int64),
        "scalar": np.array(2.5, dtype=np.float64),
    }


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    made = arrays()
    path = tmp_path / "model.safetensors"
    save_file(made, path, metadata={"format": "pt"})
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    inventory = read_inventory(path)
    assert inventory.architecture == "gpt_oss"
    assert dict(inventory.metadata) == {"format": "pt"}
    assert {item.name: (item.format, item.shape) for item in inventory.tensors} == {
        "router.weight": ("fp32", (4, 8)),
        "half": ("fp16", (3, 2)),
        "blocks": ("u8", (2, 3, 16)),
        "flags": ("bool", (3,)),
        "ids": ("i64", (5,)),
        "scalar": ("fp64", ()),
    }
    for name, expected in made.items():
        found = open_tensor(inventory, name)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
        assert not found.flags.writeable
    assert read_inventory(tmp_path).digest == inventory.digest


def test_bf16_and_float8_are_bit_patterns(tmp_path: Path) -> None:
    header = {"h": entry(0, 4, "BF16", [2]), "e": entry(4, 8, "F8_E4M3", [4]), "none": entry(8, 8, "F32", [0, 3])}
    inventory = read_inventory(write(tmp_path / "m.safetensors", header, b"\x80\x3f\x00\xc0\x01\x02\x03\x04"))
    assert inventory.architecture == "unknown"
    assert open_tensor(inventory, "h").tolist() == [0x3F80, 0xC000]
    assert inventory.tensor("e").format == "f8_e4m3"
    assert open_tensor(inventory, "none").shape == (0, 3)


def write_index(folder: Path, mapping: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": mapping}))
    return path


def test_index_joins_shards(tmp_path: Path) -> None:
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "x-1.safetensors")
    save_file({"b": np.zeros((2, 2), np.float32)}, tmp_path / "x-2.safetensors")
    path = write_index(tmp_path, {"a": "x-1.safetensors", "b": "x-2.safetensors"})
    inventory = read_inventory(path)
    assert inventory.names == ("a", "b")
    assert open_tensor(inventory, "b").shape == (2, 2)
    assert read_inventory(tmp_path).digest == inventory.digest


@pytest.mark.parametrize(
    ("mapping", "codes"),
    [
        ([], ["KM618"]),
        ({"a": "../secret.safetensors"}, ["KM618"]),
        ({"a": "/etc/passwd"}, ["KM618"]),
        ({"a": 3, "b": ".."}, ["KM618", "KM618"]),
        ({"a": "x-1.safetensors", "b": "x-9.safetensors"}, ["KM617"]),
        ({"a": "x-1.safetensors", "c": "x-1.safetensors"}, ["KM618"]),
        ({"a": "x-1.safetensors", "b": "x-1.safetensors"}, ["KM618"]),
        ({"a": "x-1.safetensors", "b": "x-2.safetensors", "d": "x-3.safetensors"}, ["KM613"]),
        ({"b": "x-2.safetensors", "d": "x-1.safetensors"}, ["KM618", "KM618"]),
    ],
)
def test_wrong_index_is_refused(mapping: object, codes: list[str], tmp_path: Path) -> None:
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "x-1.safetensors")
    save_file({"b": np.ones(3, np.float32)}, tmp_path / "x-2.safetensors")
    save_file({"a": np.ones(3, np.float32), "d": np.ones(3, np.float32)}, tmp_path / "x-3.safetensors")
    with pytest.raises(KernelmapError) as caught:
        read_inventory(write_index(tmp_path, mapping))
    assert [item.code for item in caught.value.diagnostics] == codes


def test_damaged_files_never_escape(tmp_path: Path) -> None:
    """Only KernelmapError comes out of 400 damaged copies of a good file."""
    path = tmp_path / "model.safetensors"
    save_file(arrays(), path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    chance = random.Random(77)
    refused = 0
    for turn in range(400):
        content = bytearray(whole)
        if turn % 4 == 0:
            del content[chance.randrange(len(whole)) :]
        else:
            for _ in range(1 + turn % 3):
                content[chance.randrange(header)] = chance.choice(b'\x00\xff"[]{},:0193\\u- ')
        path.write_bytes(content)
        try:
            read_safetensors(path)
        except KernelmapError:
            refused += 1
    assert refused > 300
