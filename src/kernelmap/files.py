"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kernelmap.errors import Diagnostic, KernelmapError


@contextmanager
def whole_file(path: Path, code: str) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of ``path`` when the block ends and leaves nothing when it raises.

    Raises KernelmapError (``code``) if it cannot be written or if something that is no file is there: a device or a
    pipe would be replaced, not written to.
    """
    temporary = ""
    try:
        if path.exists() and not path.is_file():
            raise KernelmapError(Diagnostic(code, f"cannot write {path}: there is something that is no file"))
        place = path.resolve()  # a link stays one, and its target is written
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o644
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=place.name, suffix=".tmp", delete=False) as file:
            temporary = file.name
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(place)
        temporary = ""
    except OSError as error:
        raise KernelmapError(Diagnostic(code, f"cannot write {path}: {error.strerror or error}")) from None
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def write_whole(text: str, path: Path, code: str = "KM832") -> None:
    """Writes a text file whole or not at all. Raises KernelmapError (``code``) if it cannot be written."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        found = ascii(text[error.start : error.end][:8])
        raise KernelmapError(Diagnostic(code, f"cannot write {path}: {found} is no text in UTF-8")) from None
    with whole_file(path, code) as file:
        file.write(data)
