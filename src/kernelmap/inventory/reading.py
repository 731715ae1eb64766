"""Reads the inventory of whatever a user names: a file of any kind, or a folder."""

from __future__ import annotations

from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError, Place
from kernelmap.inventory.files import mapped, unreadable
from kernelmap.inventory.gguf_file import MAGIC, read_gguf
from kernelmap.inventory.gguf_shards import SHARD_NAME
from kernelmap.models.inventory import Inventory

_LFS = b"version https://git-lfs"
_INDEX = ".safetensors.index.json"
_KINDS = "a GGUF file, a safetensors file or index, or a JSON profile"


def read_inventory(path: Path | str) -> Inventory:
    """The inventory of a GGUF file (or its shards), safetensors file or index, JSON profile, or folder with one.

    Decided by content, then by suffix. Raises KernelmapError: KM601 cannot be read, KM602 nothing that it knows, and
    whatever the reader of that kind finds.
    """
    path = Path(path)
    if path.is_dir():
        path = _in_folder(path)
    with mapped(path) as file:
        start = file.data[:64]
    if start.startswith(MAGIC) or (path.suffix == ".gguf" and not start.startswith(_LFS)):
        return read_gguf(path)
    if start.startswith(_LFS):
        message = f"{path} is a git-lfs pointer, not the model"
        raise _refused(path, message, help="fetch the file itself: git lfs pull")
    if path.name.endswith(_INDEX) or path.suffix == ".safetensors" or start[8:9] == b"{":
        from kernelmap.inventory.safetensors_file import read_safetensors

        return read_safetensors(path)
    if path.suffix == ".json" or start.lstrip().startswith(b"{"):
        from kernelmap.inventory.profile import read_profile

        return read_profile(path)
    raise _refused(path, f"{path} is no model file", expected=_KINDS, found=f"a file that begins with {start[:8]!r}")


def _in_folder(folder: Path) -> Path:
    """The one model of a folder: a safetensors index, else a single GGUF or safetensors model."""
    try:
        names = sorted(item.name for item in folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error.strerror or str(error)) from None
    indexes = [name for name in names if name.endswith(_INDEX)]
    models = [name for name in names if name.endswith(".gguf") and _is_first(name)]
    if not indexes:
        models += [name for name in names if name.endswith(".safetensors")]
    found = indexes + models
    if len(found) == 1:
        return folder / found[0]
    if not found:
        raise _refused(folder, f"the folder {folder} holds no model", expected=_KINDS)
    shown = ", ".join(found[:5]) + (" ..." if len(found) > 5 else "")
    raise _refused(folder, f"the folder {folder} holds {len(found)} models", found=shown, help="name one of them")


def _is_first(name: str) -> bool:
    match = SHARD_NAME.fullmatch(name)
    return match is None or int(match["number"]) == 1


def _refused(path: Path, message: str, *, expected: str = "", found: str = "", help: str = "") -> KernelmapError:
    place = Place(str(path))
    return KernelmapError(Diagnostic("KM602", message, place=place, expected=expected, found=found, help=help))
