"""Where maps, contracts, circuits and provider packages come from: this package, folders, entry points."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, resources
from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError

ENTRY_POINT_GROUP = "kernelmap.providers"


@dataclass(frozen=True, slots=True)
class ProviderPackage:
    """A package that may hold implementations, and the folder of it that may hold maps."""

    name: str
    folder: Path | None

    def owns(self, module: str) -> bool:
        """Whether ``module`` lies in this package."""
        return module == self.name or module.startswith(self.name + ".")


@lru_cache(maxsize=1)
def provider_packages() -> tuple[ProviderPackage, ...]:
    """The registered provider packages, sorted by name. Found without importing them."""
    names = {point.value.partition(":")[0] for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    return tuple(ProviderPackage(name, _folder(name)) for name in sorted(names | {"kernelmap_providers"}))


def _folder(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def shipped_maps() -> Path:
    """The folder of the maps that this package ships."""
    return Path(str(resources.files("kernelmap.kernel_maps")))


def shipped_circuits() -> Path:
    """The folder of the circuits that this package ships."""
    return Path(str(resources.files("kernelmap.circuits")))


def map_folders(extra: Iterable[Path] = (), *, shipped: bool = True) -> tuple[Path, ...]:
    """Folders of maps: the shipped one, those of provider packages, then ``extra``. Raises for a missing folder."""
    folders: list[Path] = []
    if shipped:
        folders.append(shipped_maps())
        for package in provider_packages():
            if package.folder is not None and (package.folder / "kernel_maps").is_dir():
                folders.append(package.folder / "kernel_maps")
    missing: list[Diagnostic] = []
    for folder in extra:
        if folder.is_dir():
            folders.append(folder)
        else:
            missing.append(Diagnostic("KM216", f"no such folder of maps: {folder}", help="give a folder that exists"))
    if missing:
        raise KernelmapError(missing)
    return tuple({folder.resolve(): folder for folder in reversed(folders)}.values())[::-1]


def json_files(folder: Path) -> Iterator[Path]:
    """The JSON files of a folder, sorted by name; none if there is no such folder."""
    if folder.is_dir():
        found = (path for path in folder.iterdir() if path.suffix == ".json" and path.is_file())
        yield from sorted(found, key=lambda path: path.name)


def module_file(module: str) -> Path | None:
    """Source file of a provider module, found without importing it; None if there is none."""
    for package in provider_packages():
        if package.owns(module) and package.folder is not None:
            base = package.folder.joinpath(*module.removeprefix(package.name).strip(".").split("."))
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    return path
    return None
