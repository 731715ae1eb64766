"""Sides of a diff: a lock file, a folder of maps, a git revision or a host, each as a lock."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from kernelmap.circuit.loading import circuit_paths, read_circuit
from kernelmap.circuit.storage import reference_inventory
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.lock import LockHost, LockMaker, Target, read_lock
from kernelmap.models.lock import Lock
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry, load_registry
from kernelmap.source_digests import SourceTree
from kernelmap.sources import ProviderPackage, json_files, provider_packages

_PLACES = ("providers", "src", ".")
"""Folders of a checkout in which a provider package may lie."""
HostLoader = Callable[[str | None], LockHost]
"""From a profile (None: this machine) to a host."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What the sides of a diff have in common, apart from what each is named for."""

    registry: Registry
    """For hosts; folders and revisions have their own."""
    hosts: Sequence[LockHost]
    load: HostLoader
    policy: Policy
    circuits: Sequence[Path] = ()
    sources: SourceTree = field(default_factory=lambda: SourceTree(provider_packages()))
    """As installed: read once for both sides. A revision has its own."""


def side_of(word: str, ground: Ground) -> Lock:
    """The lock of ``git:REV``, ``host:NAME``, a lock file, a folder of maps, or (if it is no path) a git revision.

    Holes are recorded. Raises KernelmapError for a word that is none of these, and for files that cannot be read.
    """
    kind, colon, rest = word.partition(":")
    if colon and kind == "host":
        return _resolved(ground.registry, ground, hosts=(ground.load(rest),))
    path = Path(word)
    if not (colon and kind == "git") and path.is_file():
        return read_lock(path)
    if not (colon and kind == "git") and path.is_dir():
        return _resolved(load_registry((path,), shipped=False), ground)
    with revision(rest if colon and kind == "git" else word) as tree:
        folders = [folder for folder in (tree.root / "kernel_maps",) if folder.is_dir()]
        circuits = {path.stem: path for path in json_files(tree.root / "circuits")}
        return _resolved(load_registry(folders, shipped=False), ground, circuits=circuits, packages=tree.packages)


def _resolved(
    registry: Registry,
    ground: Ground,
    *,
    hosts: Sequence[LockHost] | None = None,
    circuits: Mapping[str, Path] | None = None,
    packages: tuple[ProviderPackage, ...] | None = None,
) -> Lock:
    """Every circuit resolved with a registry, and every map and contract of it."""
    maker = LockMaker(registry, SourceTree(packages) if packages else ground.sources, ground.policy)
    for name, path in (circuits if circuits is not None else circuit_paths(ground.circuits)).items():
        item = read_circuit(str(path))
        target = Target(name, item, reference_inventory(item.circuit, item.source))
        maker.resolve(target, hosts if hosts is not None else ground.hosts)
    return maker.lock(complete=True, groups=registry.contracts)


@dataclass(frozen=True, slots=True)
class Revision:
    """Files of a git revision in a temporary folder, and its provider packages."""

    root: Path
    packages: tuple[ProviderPackage, ...]


@contextmanager
def revision(name: str) -> Iterator[Revision]:
    """The maps, circuits and provider sources of a revision of the repository around the working directory.

    Raises KernelmapError if there is no repository or no such revision, or if it holds no maps.
    """
    if name.startswith("-"):
        raise _none(name, "a revision does not begin with a dash")
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", about=name)
    top = Path(_git("rev-parse", "--show-toplevel", about=name).decode().strip())
    sha = commit.decode().strip()
    present = _git("ls-tree", "--name-only", sha, cwd=top, about=name).decode().splitlines()
    names = ["kernel_maps", "circuits", "providers", "src", *(item.name for item in provider_packages())]
    wanted = [item for item in names if item in present]
    if "kernel_maps" not in wanted:
        raise _none(name, "the revision has no folder kernel_maps at its top")
    with tempfile.TemporaryDirectory(prefix="kernelmap-") as folder:
        with tarfile.open(
            fileobj=BytesIO(_git("archive", "--format=tar", sha, "--", *wanted, cwd=top, about=name))
        ) as t:
            t.extractall(folder, filter="data")
        root = Path(folder)
        yield Revision(root, tuple(_package(item, root) for item in provider_packages()))


def _package(item: ProviderPackage, root: Path) -> ProviderPackage:
    """A provider package as the revision has it; as installed, if the repository does not hold it."""
    found = (root / place / item.name for place in _PLACES)
    return ProviderPackage(item.name, next((folder for folder in found if folder.is_dir()), item.folder))


def _git(*arguments: str, about: str, cwd: Path | None = None) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise _none(about, "git is not installed") from None
    except subprocess.CalledProcessError as error:
        raise _none(about, error.stderr.decode(errors="replace").strip() or "git knows no such revision") from None


def _none(word: str, why: str) -> KernelmapError:
    help = "a side is a lock file, a folder of maps, git:REV or host:NAME"
    return KernelmapError(Diagnostic("KM833", f"nothing to compare: {word!r}: {why}", help=help))
