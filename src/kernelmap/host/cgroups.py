"""CPU and memory limits of the process's control groups, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 2**60
"""Version 1 writes "no limit" as the largest page-aligned int64."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the groups allow; 0 where they allow everything."""

    cpus: float = 0.0
    memory_bytes: int = 0


def cgroup_limits(root: Path) -> Limits:
    """The tightest limits of the process's groups and their parents, from proc and sys under ``root``."""
    cpus: list[float] = []
    memory: list[int] = []
    for folder, version in _folders(root):
        if version == 2:
            quota, _, period = _read(folder / "cpu.max").partition(" ")
            limit = _read(folder / "memory.max")
        else:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            limit = _read(folder / "memory.limit_in_bytes")
        if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
            cpus.append(int(quota) / int(period))
        if limit.isdecimal() and 0 < int(limit) < _NO_LIMIT:
            memory.append(int(limit))
    return Limits(min(cpus, default=0.0), min(memory, default=0))


def _folders(root: Path) -> Iterator[tuple[Path, int]]:
    """Folders of the process's groups up to their roots. Missing ones pass: a container sees its own at the root."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        names = {"cpu", "memory"} & set(controllers.split(","))
        bases = [(mount / name, 1) for name in sorted(names)] if controllers else [(mount, 2), (mount / "unified", 2)]
        parts = [part for part in group.split("/") if part not in {"", ".."}]
        for base, version in bases:
            for depth in range(len(parts), -1, -1):
                yield base.joinpath(*parts[:depth]), version


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
