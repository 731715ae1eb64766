"""Writing an import: a folder of maps and its report, whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError, Place
from kernelmap.foreign.cke import Imported
from kernelmap.models.base import FileModel

REPORT = Path("report") / "import-cke.json"
"""Inside the folder, where it is not taken for a map."""


def write_import(found: Imported, folder: Path) -> None:
    """Writes ``<id>.json`` for each map and the report into a folder that must not exist yet, or be empty.

    Everything is written beside it first and then moved into place. Raises KernelmapError (KM853, KM832); then, as
    after an interruption, nothing is left behind.
    """
    temporary: Path | None = None
    try:
        _demand_free(folder)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".tmp", dir=folder.parent))
        temporary.chmod(0o755)
        (temporary / REPORT).parent.mkdir()
        (temporary / REPORT).write_text(_text(found.report, defaults=True), encoding="utf-8")
        for item in found.maps:
            (temporary / f"{item.id}.json").write_text(_text(item), encoding="utf-8")
        temporary.replace(folder)  # also onto an empty folder
        temporary = None
    except OSError as error:
        message = f"cannot write {folder}: {error.strerror or error}"
        raise KernelmapError(Diagnostic("KM832", message, place=Place(str(folder)))) from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _demand_free(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        message = f"{folder} exists and is no empty folder"
        help = "an import replaces nothing: give another folder, or remove this one"
        raise KernelmapError(Diagnostic("KM853", message, place=Place(str(folder)), help=help))


def _text(item: FileModel, *, defaults: bool = False) -> str:
    value = item.model_dump(mode="json", by_alias=True, exclude_defaults=not defaults)
    value.pop("$schema", None)
    kind = "foreign_import" if defaults else "kernel_map"
    head = {"$schema": f"urn:kernelmap:schema:{kind}:1", "schema_version": 1}
    return json.dumps({**head, **value}, indent=2, ensure_ascii=False) + "\n"
