"""Malformed GGUF files: each is refused with its code and place, and costs neither memory nor time."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from gguf_builder import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    FP32,
    I32,
    Q4_K,
    Q8_0,
    STRING,
    U8,
    U32,
    U64,
    Gguf,
    array,
    key_value,
    tensor,
    text,
)

from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.inventory.gguf_file import read_gguf
from kernelmap.inventory.problems import MAX_REPORTED

MODEL = Path(__file__).parents[1] / "data/models/qwen35moe.gguf"
GOOD = Gguf()
HEADER = 24
KEY_END = HEADER + len(ARCHITECTURE)

CASES: dict[str, tuple[bytes, str, str]] = {
    # name: (bytes, code, a part of message, expected or found that says where)
    "empty": (b"", "KM601", "empty"),
    "short magic": (b"GG", "KM604", "magic, which begins at byte 0"),
    "wrong magic": (Gguf(magic=b"GGML").build(), "KM602", "b'GGML'"),
    "no version": (b"GGUF\x03\x00", "KM604", "version, which begins at byte 4"),
    "version 1": (Gguf(version=struct.pack("<I", 1)).build(), "KM603", "at byte 4"),
    "version 99": (Gguf(version=struct.pack("<I", 99)).build(), "KM603", "99"),
    "version 0": (Gguf(version=struct.pack("<I", 0)).build(), "KM603", "at byte 4"),
    "big-endian": (Gguf(version=struct.pack(">I", 3)).build(), "KM603", "big-endian version 3"),
    "no counts": (GOOD.build()[:12], "KM604", "number of tensors, which begins at byte 8"),
    "2**60 tensors": (Gguf(tensor_count=2**60).build(), "KM604", "number of tensors at byte 8"),
    "2**60 keys": (Gguf(key_count=2**60).build(), "KM604", "number of metadata keys at byte 16"),
    "many keys": (Gguf(key_count=2**15, data=bytes(2**20)).build(), "KM605", "number of metadata keys at byte 16"),
    "many tensors": (Gguf(tensor_count=2**18, data=bytes(2**24)).build(), "KM605", "number of tensors at byte 8"),
    "cut in a key": (GOOD.build()[: HEADER + 10], "KM604", "at byte 8"),
    "cut in a value": (Gguf().build()[: KEY_END - 2], "KM604", "at byte 8"),
    "cut in a tensor": (Gguf(tensor_count=2).header()[:-20], "KM604", "'b'"),
    "cut in the data": (GOOD.build()[:-40], "KM615", "'b'"),
    "no data": (GOOD.header(), "KM615", "'a'"),
    "key of 2**63 bytes": (
        Gguf(keys=[text("general.architecture", 2**63) + bytes(20)]).build(), "KM604", "byte 32",
    ),
    "value of 2**63 bytes": (
        Gguf(keys=[text("general.architecture") + struct.pack("<I", STRING) + text("toy", 2**63)]).build(),
        "KM604", "'general.architecture'",
    ),
    "empty key": (Gguf(keys=[ARCHITECTURE, key_value("", U32, 1)]).build(), "KM605", f"key 1 at byte {KEY_END}"),
    "long key": (
        Gguf(keys=[ARCHITECTURE, key_value("k" * 1500, U32, 1)]).build(), "KM605", f"key 1 at byte {KEY_END}",
    ),
    "key not UTF-8": (
        Gguf(keys=[ARCHITECTURE, key_value(b"k\xff", U32, 1)]).build(), "KM608", f"0xff at byte {KEY_END + 9}",
    ),
    "key with an escape": (Gguf(keys=[ARCHITECTURE, key_value("\x1b[2J", U32, 1)]).build(), "KM608", "\\x1b[2J"),
    "value not UTF-8": (
        Gguf(keys=[ARCHITECTURE, key_value("general.name", STRING, b"\xc3(")]).build(), "KM608", "'general.name'",
    ),
    "value type 13": (
        Gguf(keys=[ARCHITECTURE, text("x") + struct.pack("<II", 13, 0)]).build(), "KM606", f"byte {KEY_END + 9}",
    ),
    "bool of 2": (Gguf(keys=[ARCHITECTURE, text("flag") + struct.pack("<IB", BOOL, 2)]).build(), "KM606", "'flag'"),
    "NaN": (Gguf(keys=[ARCHITECTURE, key_value("eps", F32, float("nan"))]).build(), "KM606", "'eps'"),
    "array of arrays": (
        Gguf(keys=[ARCHITECTURE, text("n") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]).build(), "KM606", "'n'",
    ),
    "array of type 77": (
        Gguf(keys=[ARCHITECTURE, text("n") + struct.pack("<IIQ", ARRAY, 77, 1)]).build(), "KM606", "77",
    ),
    "array of 2**60": (Gguf(keys=[ARCHITECTURE, array("n", I32, [1], 2**60)]).build(), "KM604", "array 'n'"),
    "array of 2**63 strings": (
        Gguf(keys=[ARCHITECTURE, array("tokenizer.t", STRING, ["x"], 2**63)]).build(), "KM604", "array 'tokenizer.t'",
    ),
    "array string past end": (
        Gguf(keys=[ARCHITECTURE, array("tokenizer.t", STRING, ["x"])[:-9] + text("x", 2**62)]).build(),
        "KM604", "string 0 of the array 'tokenizer.t'",
    ),
    "array of long strings": (
        Gguf(keys=[ARCHITECTURE, array("s", STRING, ["x" * 5000])]).build(), "KM605", "item 0 of 's'",
    ),
    "too much metadata": (
        Gguf(keys=[ARCHITECTURE, *(array(f"n{i}", U8, [0] * 4096) for i in range(65))]).build(), "KM605", "'n63'",
    ),
    "key twice": (Gguf(keys=[ARCHITECTURE, ARCHITECTURE]).build(), "KM607", f"byte {KEY_END}"),
    "no architecture": (Gguf(keys=[]).build(), "KM609", "nothing"),
    "architecture is a number": (
        Gguf(keys=[key_value("general.architecture", U32, 5)]).build(), "KM609", "'5'",
    ),
    **{
        f"alignment {value}": (
            Gguf(keys=[ARCHITECTURE, key_value("general.alignment", U64, value)]).build(), "KM610", str(value),
        )
        for value in (0, 3, 48, 2**40)
    },
    "alignment is a text": (
        Gguf(keys=[ARCHITECTURE, key_value("general.alignment", STRING, "32")]).build(), "KM610", "32",
    ),
    "no dims": (Gguf(tensors=[tensor("a", (), FP32, 0)]).build(), "KM611", "found 0"),
    "5 dims": (Gguf(tensors=[tensor("a", (1, 1, 1, 1, 1), FP32, 0)]).build(), "KM611", "found 5"),
    "2**32-1 dims": (Gguf(tensors=[tensor("a", (1,), FP32, 0, count=2**32 - 1)]).build(), "KM611", "'a'"),
    "dim of 0": (Gguf(tensors=[tensor("a", (32, 0), FP32, 0)]).build(), "KM611", "[32, 0]"),
    "dims overflow": (Gguf(tensors=[tensor("a", (2**32, 2**32), FP32, 0)]).build(), "KM611", "'a'"),
    "dim of 2**64-1": (Gguf(tensors=[tensor("a", (2**64 - 1,), FP32, 0)]).build(), "KM611", "'a'"),
    "half a block": (Gguf(tensors=[tensor("a", (128, 2), Q4_K, 0)]).build(), "KM611", "multiple of 256"),
    "bytes overflow": (Gguf(tensors=[tensor("a", (2**62,), FP32, 0)]).build(), "KM615", "'a'"),
    "type 4 (removed)": (Gguf(tensors=[tensor("a", (32,), 4, 0)]).build(), "KM612", "found 4"),
    "type 2**32-1": (Gguf(tensors=[tensor("a", (32,), 2**32 - 1, 0)]).build(), "KM612", "'a'"),
    "tensor twice": (
        Gguf(tensors=[tensor("a", (32,), Q8_0, 0), tensor("a", (32,), Q8_0, 64)]).build(), "KM613", "'a'",
    ),
    "misaligned": (Gguf(tensors=[tensor("a", (4,), FP32, 16)]).build(), "KM614", "found 16"),
    "offset past end": (Gguf(tensors=[tensor("a", (4,), FP32, 2**40)]).build(), "KM615", "'a'"),
    "offset of 2**64-32": (Gguf(tensors=[tensor("a", (4,), FP32, 2**64 - 32)]).build(), "KM615", "'a'"),
    "overlap": (
        Gguf(tensors=[tensor("a", (32, 2), Q8_0, 0), tensor("b", (4,), FP32, 64)]).build(), "KM616", "'a' and 'b'",
    ),
    "same bytes": (
        Gguf(tensors=[tensor("a", (4,), FP32, 0), tensor("b", (4,), FP32, 0)]).build(), "KM616", "'a' and 'b'",
    ),
    "tensor name not UTF-8": (Gguf(tensors=[tensor(b"\xfe", (4,), FP32, 0)]).build(), "KM608", "tensor 0"),
    "tensor name empty": (Gguf(tensors=[tensor("", (4,), FP32, 0)]).build(), "KM605", "tensor 0"),
    "split without name": (
        Gguf(keys=[ARCHITECTURE, key_value("split.count", U32, 3)]).build(), "KM618", "'split.count'",
    ),
}  # fmt: skip


def told(item: Diagnostic) -> str:
    return f"{item.message} expected {item.expected} found {item.found}"


def problems_of(path: Path) -> tuple[Diagnostic, ...]:
    with pytest.raises(KernelmapError) as caught:
        read_gguf(path)
    return caught.value.diagnostics


def test_builder_writes_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(GOOD.build())
    assert [item.name for item in read_gguf(path).tensors] == ["a", "b"]


@pytest.mark.parametrize("name", CASES)
def test_malformed_file_is_refused(name: str, tmp_path: Path) -> None:
    content, code, where = CASES[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    start = time.perf_counter()
    found = problems_of(path)
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    matching = [item for item in found if item.code == code]
    assert matching, [str(item) for item in found]
    assert any(where in told(item) for item in matching), [told(item) for item in matching]
    assert all(item.place is not None and item.place.file == str(path) for item in found)
    assert peak < 16 * 2**20
    assert seconds < 5


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    keys = [ARCHITECTURE, ARCHITECTURE, key_value("eps", F32, float("inf"))]
    tensors = [
        tensor("a", (32,), 99, 0), tensor("b", (0,), FP32, 0), tensor("c", (4,), FP32, 7),
        tensor("d", (4,), FP32, 2**30),
    ]  # fmt: skip
    path.write_bytes(Gguf(keys=keys, tensors=tensors).build())
    assert [item.code for item in problems_of(path)] == ["KM607", "KM606", "KM612", "KM611", "KM614", "KM615"]


def test_reports_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(Gguf(tensors=[tensor(f"t{index}", (0,), FP32, 0) for index in range(5000)]).build())
    found = problems_of(path)
    assert len(found) == MAX_REPORTED + 1
    assert f"and {5000 - MAX_REPORTED} more" in found[-1].message


def test_flipped_and_cut_files_never_escape(tmp_path: Path) -> None:
    """Only KernelmapError comes out of 600 damaged copies of a real file, and memory stays small."""
    whole = MODEL.read_bytes()
    header = 11488
    head = whole[: header + 4096]  # the data section is not read: a hole stands for it
    chance = random.Random(20240607)
    path = tmp_path / "damaged.gguf"
    refused = 0
    tracemalloc.start()
    start = time.perf_counter()
    for turn in range(600):
        content = bytearray(head)
        size = len(whole)
        if turn % 3 == 0:
            size = chance.randrange(header)
            del content[size:]
        else:
            for _ in range(1 if turn % 3 == 1 else 24):
                content[chance.randrange(header)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        with path.open("wb") as file:
            file.write(content)
            file.truncate(size)
        try:
            read_gguf(path)
        except KernelmapError as error:
            refused += 1
            assert all(item.code.startswith("KM6") for item in error.diagnostics)
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 300
    assert peak < 8 * 2**20
    assert seconds < 60
