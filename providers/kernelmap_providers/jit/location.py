"""Where cached files go: one directory a user, movable by an environment variable."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "KERNELMAP_CACHE_DIR"


def cache_root() -> Path:
    """The cache directory; it may not exist yet. ``KERNELMAP_CACHE_DIR`` replaces the platform's own place."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path(platformdirs.user_cache_path("kernelmap"))
