"""What all scaffolds share: whose folder, names that are free, files written all or none."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.models.contract import Contract
from kernelmap.registry import Registry
from kernelmap.sources import provider_packages

OURS = "kernelmap_providers"
"""The provider package of this project: its maps and circuits lie beside it, not in it."""
_ID = re.compile(r"[a-z][a-z0-9_]{0,199}")


def package_folder(package: str | None) -> tuple[str, Path]:
    """(name, folder) of a registered provider package. Raises KernelmapError (KM904) for any other."""
    known = {item.name: item for item in provider_packages()}
    name = package or OURS
    found = known.get(name)
    if found is None or found.folder is None:
        help = f"registered packages: {', '.join(known)}"
        message = f"{name!r} is no registered provider package"
        raise KernelmapError(Diagnostic("KM904", message, near=nearest(name, known), help=help))
    return name, found.folder


def contract_of(group: str, registry: Registry) -> Contract:
    """The contract of a group. Raises KernelmapError (KM451) if there is no such group."""
    if group not in registry.contracts:
        near = nearest(group, registry.contracts)
        raise KernelmapError(Diagnostic("KM451", f"no group is called {group!r}", near=near))
    return registry.contracts[group]


def folder_for(given: Path | None, default: Path) -> Path:
    """The folder that the user gave, which must exist (KM904), or the default one, which is made when it is needed."""
    if given is not None and not given.is_dir():
        raise KernelmapError(Diagnostic("KM904", f"no such folder: {given}", help="give a folder that exists"))
    return given or default


def check_id(word: str, what: str) -> None:
    """Raises KernelmapError (KM105) unless the word may be an id and a file name."""
    if not _ID.fullmatch(word):
        message = f"{what} {word!r}: lower case, digits and underscores, a letter first"
        raise KernelmapError(Diagnostic("KM105", message))


def refuse_taken(name: str, paths: Sequence[Path], declared: str = "") -> None:
    """Raises KernelmapError (KM903) if a file exists, or if the name is ``declared`` somewhere."""
    taken = [str(path) for path in paths if path.exists()] or ([declared] if declared else [])
    if taken:
        message = f"{name} exists already: {', '.join(taken)}"
        raise KernelmapError(Diagnostic("KM903", message, help="nothing was written"))


def json_text(value: Mapping[str, Any]) -> str:
    """The text of a file that people go on to edit."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def schema_reference(name: str, path: Path, package: str) -> dict[str, str]:
    """``$schema`` for a file of this project; nothing for others, whose editors map files to schemas by folder."""
    if package != OURS:
        return {}
    schemas = Path(__file__).parent.parent / "schemas" / f"{name}.schema.json"
    return {"$schema": Path(os.path.relpath(schemas, path.parent)).as_posix()}


def write_all(files: Mapping[Path, str]) -> None:
    """Writes files that must not exist yet, and folders for them: each whole, and all or none.

    Raises KernelmapError: KM903 if one came to exist meanwhile, KM904 if one cannot be written.
    """
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_new(path, text)
            written.append(path)
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            refuse_taken(Path(str(error.filename2 or error.filename)).stem, tuple(files), str(error.filename))
        if isinstance(error, OSError):
            message = f"cannot write {error.filename}: {error.strerror}"
            help = "give a --package of your own, and folders that exist and can be written"
            raise KernelmapError(Diagnostic("KM904", message, help=help)) from None
        raise


def _write_new(path: Path, text: str) -> None:
    """Writes a file under another name and links it to its own, which fails if that exists."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".kernelmap-", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        os.link(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
