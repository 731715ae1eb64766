"""Places as a page shows them: a report is passed around, and says nothing of the machine that made it."""

from __future__ import annotations

from pathlib import Path

from kernelmap.models.audit import Audit


def from_here(name: str, here: Path | None = None) -> str:
    """A file's name relative to the working directory (or ``here``) if it lies below it; else as it is."""
    path, root = Path(name), (here or Path.cwd())
    return path.relative_to(root).as_posix() if name and path.is_relative_to(root) else name


def shown(audit: Audit, here: Path | None = None) -> Audit:
    """The same audit with the files of its findings named as `from_here` does."""
    findings = tuple(
        item.model_copy(update={"file": from_here(item.file, here)}) if item.file is not None else item
        for item in audit.findings
    )
    return audit.model_copy(update={"findings": findings})
