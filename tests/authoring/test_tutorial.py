"""docs/tutorial.md, run: its files written, its commands run in order, what they print compared."""

from __future__ import annotations

import json
import re
from pathlib import Path

import documents
import environment
import pytest
from environment import ROOT

from kernelmap.cli.main import run

TUTORIAL = ROOT / "docs" / "tutorial.md"
EDITORS = ROOT / "docs" / "editors.md"


def test_the_tutorial_says_what_happens(tmp_path: Path) -> None:
    made = environment.make(tmp_path, tmp_path / "work")
    ran = 0
    for step in documents.steps(TUTORIAL.read_text(encoding="utf-8")):
        shown = documents.perform(step, made)
        where = f"{TUTORIAL.name}:{step.line}: {step.command or step.path}"
        assert documents.pattern(step.expected).fullmatch(shown), f"{where}\nprinted\n{shown}"
        ran += bool(step.command)
    assert ran >= 20


def test_the_editor_settings_are_json_and_read_what_check_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = EDITORS.read_text(encoding="utf-8")
    settings, tasks = (json.loads(block) for block in re.findall(r"```json vscode\n(.*?)```", text, re.DOTALL))
    urls = [entry["url"] for entry in settings["json.schemas"]]
    assert urls and all((ROOT / "src/kernelmap/schemas" / Path(url).name).is_file() for url in urls)
    for name in re.search(r"for name in ([\w ]+);", text)[1].split():
        assert run(["schema", name]) == 0
    capsys.readouterr()
    bad = tmp_path / "gemm_nt_fp32.json"
    bad.write_text((ROOT / "kernel_maps" / bad.name).read_text().replace('"production"', '"produktion"'))
    assert run(["check", "--format", "github", str(bad)]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("::"))
    matcher = tasks["tasks"][0]["problemMatcher"]["pattern"]
    found = re.match(matcher["regexp"], line)
    assert found is not None, line
    assert (found[matcher["severity"]], found[matcher["file"]], int(found[matcher["line"]])) == ("error", str(bad), 8)


def test_documents_link_to_files_that_exist() -> None:
    for name in ("tutorial.md", "editors.md"):
        path = ROOT / "docs" / name
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).is_file(), f"{name}: {target}"


def test_the_runner_itself(tmp_path: Path) -> None:
    """Fences are read as they are meant, and a wrong output is noticed."""
    text = "a\n```toml file=x/y.toml\nk = 1\n```\n```console\n$ one\nsaid ... here\n...\nend\n$ two\n```\n"
    text += "```python\nno\n```\n"
    file, one, two = documents.steps(text)
    assert (file.path, file.text, file.line) == ("x/y.toml", "k = 1\n", 3)
    assert (one.command, one.expected, one.line) == ("one", ["said ... here", "...", "end"], 6)
    assert (two.command, two.expected) == ("two", [])
    match = documents.pattern(one.expected).fullmatch
    assert match("said anything here\nx\ny\nend\n") and match("said  here\nend\n")
    assert not match("said anything\nend\n") and not match("said a here\nx\n") and not match("said a here\nend\nmore\n")
    assert not documents.pattern([]).fullmatch("unexpected\n")
    made = environment.Environment(tmp_path, tmp_path)
    documents.perform(file, made)
    assert (tmp_path / "x/y.toml").read_text() == "k = 1\n"
    with pytest.raises(AssertionError, match="line 2"):
        list(documents.steps("```console\nsaid\n```\n"))
