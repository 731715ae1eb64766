"""Documents that run: files and commands of a markdown text, and what the commands are said to print.

A fence ``python file=PATH`` (or any language) is a file; a fence ``console`` holds commands after ``$`` and their
output, where ``...`` stands for any text of a line, and alone on a line for any lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from environment import Environment

_FENCE = re.compile(r"^```(\S+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Step:
    """A file to write, or a command and the lines that it is said to print."""

    line: int
    path: str = ""
    text: str = ""
    command: str = ""
    expected: list[str] = field(default_factory=list)


def steps(text: str) -> Iterator[Step]:
    for match in _FENCE.finditer(text):
        language, path, body = match.groups()
        line = text.count("\n", 0, match.start()) + 2
        if path:
            yield Step(line, path=path, text=body)
        elif language == "console":
            step: Step | None = None
            for offset, row in enumerate(body.splitlines()):
                if row.startswith("$ "):
                    if step is not None:
                        yield step
                    step = Step(line + offset, command=row[2:])
                else:
                    assert step is not None, f"line {line + offset}: output before any command"
                    step.expected.append(row)
            if step is not None:
                yield step


def pattern(expected: list[str]) -> re.Pattern[str]:
    rows = [
        r"(?:[^\n]*\n)*?" if row == "..." else ".*?".join(map(re.escape, row.split("..."))) + r"\n" for row in expected
    ]
    return re.compile("".join(rows))


def perform(step: Step, environment: Environment) -> str:
    """Writes the file, or runs the command: what it printed, errors after output, without the folder's path."""
    if step.path:
        path = environment.work / step.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text, encoding="utf-8")
        return ""
    done = environment.run(shell=step.command)
    shown = (done.stdout + done.stderr).replace(f"{environment.work}/", "")
    return "".join(f"{row.rstrip()}\n" for row in shown.splitlines())
