"""``read_inventory`` on anything a user may name; profiles; the model itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_builder import Gguf
from pydantic import ValidationError

from kernelmap.errors import KernelmapError
from kernelmap.inventory import open_tensor, profile_text, read_inventory
from kernelmap.models.inventory import Inventory, TensorInfo
from kernelmap.rules.inventory import RULES

MODEL = Path(__file__).parents[1] / "data/models/qwen35moe.gguf"


def codes(path: Path | str) -> list[str]:
    with pytest.raises(KernelmapError) as caught:
        read_inventory(path)
    return [item.code for item in caught.value.diagnostics]


def test_what_is_no_model(tmp_path: Path) -> None:
    def made(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    assert codes(tmp_path / "missing.gguf") == ["KM601"]
    assert codes("nul\0byte.gguf") == ["KM601"]
    assert codes(made("empty.gguf", b"")) == ["KM601"]
    assert codes("/dev/null") == ["KM601"]
    assert codes(made("text.gguf", b"hello world")) == ["KM602"]
    assert codes(made("text.bin", b"hello world")) == ["KM602"]
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n"
    with pytest.raises(KernelmapError, match="git-lfs pointer"):
        read_inventory(made("pointer.gguf", pointer))
    with pytest.raises(KernelmapError, match="git-lfs pointer"):
        read_inventory(made("pointer.safetensors", pointer))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert codes(tmp_path / "pipe.gguf") == ["KM601"]


def test_folders(tmp_path: Path) -> None:
    assert codes(tmp_path) == ["KM602"]
    (tmp_path / "a.gguf").write_bytes(Gguf().build())
    (tmp_path / "readme.txt").write_text("hello")
    assert read_inventory(tmp_path).architecture == "toy"
    (tmp_path / "b.gguf").write_bytes(Gguf().build())
    with pytest.raises(KernelmapError) as caught:
        read_inventory(tmp_path)
    assert caught.value.diagnostics[0].found == "a.gguf, b.gguf"


def test_content_decides_before_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(Gguf().build())
    assert read_inventory(path).architecture == "toy"


def test_profile_round_trip(tmp_path: Path) -> None:
    inventory = read_inventory(MODEL)
    path = tmp_path / "profile.json"
    path.write_text(profile_text(inventory, "read off the fixture", derived=True))
    profile = read_inventory(path)
    assert profile.digest == inventory.digest
    assert profile.names == inventory.names
    assert [item.nbytes for item in profile.tensors] == [item.nbytes for item in inventory.tensors]
    assert (profile.source, profile.derived, profile.files) == ("read off the fixture", True, ())
    assert profile_text(profile) == path.read_text()
    assert str(MODEL.parent) not in path.read_text()
    with pytest.raises(KernelmapError, match="KM622"):
        open_tensor(profile, profile.names[0])


def test_full_form_round_trip() -> None:
    inventory = read_inventory(MODEL)
    again = Inventory.model_validate_json(inventory.model_dump_json(by_alias=True))
    assert again == inventory
    assert open_tensor(again, "output_norm.weight").shape == (256,)


def profile(**tensor: object) -> str:
    item = {"name": "w", "format": "q4_k", "shape": [2, 256], **tensor}
    return json.dumps({"$schema": "x", "schema_version": 1, "architecture": "toy", "tensors": [item]})


@pytest.mark.parametrize(
    ("tensor", "code", "where"),
    [
        ({"format": "q4k"}, "KM107", "/tensors/0"),
        ({"format": "q4k", "nbytes": 288}, "KM612", "/tensors/0/format"),
        ({"nbytes": 352}, "KM107", "/tensors/0"),
        ({"shape": [2, 100]}, "KM107", "/tensors/0"),
        ({"shape": [2, -256]}, "KM106", "/tensors/0/shape/1"),
        ({"shape": [2, 256.0]}, "KM103", "/tensors/0/shape/1"),
        ({"shap": [2]}, "KM102", "/tensors/0/shap"),
        ({"name": ""}, "KM106", "/tensors/0/name"),
    ],
)
def test_wrong_profile(tensor: dict[str, object], code: str, where: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile(**tensor))
    with pytest.raises(KernelmapError) as caught:
        read_inventory(path)
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert found.place is not None
    assert found.place.pointer == where
    assert found.place.line == 1


def test_profile_of_a_format_outside_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile(format="iq4_xs", nbytes=272))
    inventory = read_inventory(path)
    assert inventory.tensors[0].nbytes == 272
    path.write_text(profile_text(inventory))
    assert read_inventory(path).digest == inventory.digest


def test_a_tensor_twice_is_refused() -> None:
    item = TensorInfo(name="w", format="fp32", shape=(4,))
    assert item.nbytes == 16
    with pytest.raises(ValidationError, match="tensor w is listed twice"):
        Inventory(schema_version=1, architecture="toy", tensors=(item, item))


def test_digest_covers_what_selection_depends_on() -> None:
    inventory = read_inventory(MODEL)
    first, *rest = inventory.tensors

    def changed(**update: object) -> str:
        return inventory.model_copy(update=update).digest

    same = {
        "files": ("elsewhere.gguf",),
        "stamps": (),
        "tensors": (*rest, first.model_copy(update={"offset": 0})),
        "source": "x",
    }
    for key, value in same.items():
        assert changed(**{key: value}) == inventory.digest, key
    different = {
        "architecture": "other",
        "metadata": {**inventory.metadata, "new": 1},
        "tensors": (first.model_copy(update={"format": "q6_k"}), *rest),
    }
    for key, value in different.items():
        assert changed(**{key: value}) != inventory.digest, key
    assert changed(tensors=(first.model_copy(update={"name": "x"}), *rest)) != inventory.digest
    assert changed(tensors=(first.model_copy(update={"shape": (1,)}), *rest)) != inventory.digest
    assert changed(tensors=tuple(rest)) != inventory.digest


def test_reading_imports_nothing_heavy() -> None:
    code = (
        "import sys; from kernelmap.inventory import read_inventory; from kernelmap.host import probe_host\n"
        f"read_inventory({str(MODEL)!r}); probe_host()\n"
        "print([name for name in ('numba', 'llvmlite', 'torch', 'gguf', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_code_has_a_rule() -> None:
    source = Path(read_inventory.__code__.co_filename).parent
    text = "".join(path.read_text() for path in source.glob("*.py"))
    used = {f"KM6{number:02d}" for number in range(100) if f'"KM6{number:02d}"' in text} | {"KM620"}
    assert used == {rule.code for rule in RULES}
