"""A virtual environment for packages that are installed for real: it sees what the tests' own environment has."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Environment:
    """An environment and the folder in which its commands run."""

    root: Path
    work: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def site(self) -> Path:
        return next(self.root.glob("lib/python*/site-packages"))

    @property
    def environ(self) -> dict[str, str]:
        """No index, no build environments, narrow terminals without colour."""
        kept = {
            name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "KERNELMAP"))
        }
        return {
            **kept, "PATH": f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}", "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "NO_COLOR": "1", "COLUMNS": "80", "KERNELMAP_CACHE_DIR": str(self.root / "cache"),
        }  # fmt: skip

    def run(self, *words: str, shell: str = "") -> subprocess.CompletedProcess[str]:
        """A command, or a line of shell, with what it printed."""
        command: list[str] = ["sh", "-c", shell] if shell else list(words)
        if not shell:
            command[0] = str(self.bin / words[0])
        return subprocess.run(command, cwd=self.work, env=self.environ, capture_output=True, text=True, check=False)

    def good(self, *words: str) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def make(root: Path, work: Path) -> Environment:
    """A new environment in ``root``. Packages installed into it stay in it."""
    venv.create(root / "env", with_pip=False, symlinks=True)
    made = Environment(root / "env", work)
    outer = sysconfig.get_path("purelib")
    # Adding the folder as a site folder, not as a path, also follows what is installed there for editing.
    (made.site / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n", encoding="utf-8")
    for name, module in (("kernelmap", "kernelmap"), ("pytest", "pytest"), ("pip", "pip")):
        script = made.bin / name
        script.write_text(f'#!/bin/sh\nexec "{made.bin}/python" -m {module} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    work.mkdir(parents=True, exist_ok=True)
    return made
