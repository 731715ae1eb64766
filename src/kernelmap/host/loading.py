"""Host profiles: those that come with kernelmap, and those that users write."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.jsonsource import parse_json, read_json
from kernelmap.models.host import Host
from kernelmap.models.loading import validate

_SUFFIX = ".json"


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with kernelmap, sorted."""
    found = (item.name for item in files("kernelmap.host.profiles").iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)))


def load_host(name_or_path: str | Path) -> Host:
    """The host of a profile: a name from `profile_names`, or the path of a JSON file.

    Raises KernelmapError: KM701 no such profile (with near names), KM0xx no JSON, KM1xx schema.
    """
    word = os.fspath(name_or_path)
    names = profile_names()
    if word in names:
        data = files("kernelmap.host.profiles").joinpath(word + _SUFFIX).read_bytes()
        return validate(parse_json(data, f"profiles/{word}{_SUFFIX}"), Host)
    path = Path(word)
    if word.endswith(_SUFFIX) or path.name != word or path.is_file():
        return validate(read_json(path), Host)
    message = f"no host profile is named {word!r}"
    listed = ", ".join(names)
    raise KernelmapError(Diagnostic("KM701", message, expected=f"{listed}, or a .json file", near=nearest(word, names)))
