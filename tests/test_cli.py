"""The command line: outputs, exit codes, formats, and that no traceback reaches a user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from kernelmap.cli import main
from kernelmap.cli.main import run
from kernelmap.models.plan import Plan
from kernelmap.schema_files import SCHEMAS, schema_text

ROOT = Path(__file__).parent.parent
MODEL = str(ROOT / "tests/data/models/qwen35moe.gguf")
BUCKETED = "moe_swiglu_expert_forward_q4k_q5k_bucketed"


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


def test_check_of_everything_shipped_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cli(capsys, "check")
    assert code == 0
    assert "0 errors" in out and "1 circuit" in out


def test_check_strict_fails_on_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(capsys, "check", "--strict")[0] == 1


def test_check_json_lists_diagnostics(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cli(capsys, "check", "--format", "json")
    found = json.loads(out)["diagnostics"]
    assert code == 0 and all(item["severity"] == "warning" for item in found)


def test_check_one_map_reports_only_its_problems(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    value = json.loads((ROOT / "kernel_maps/gemm_nt_fp32.json").read_text())
    value |= {"id": "mine", "selection": value["selection"] | {"priority": 100}, "scrach": 1}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(value, indent=1))
    code, _, err = cli(capsys, "check", str(path))
    assert code == 1 and "KM102" in err and "near: scratch" in err and str(path) in err
    del value["scrach"]
    path.write_text(json.dumps(value, indent=1))
    code, _, err = cli(capsys, "check", str(path))
    assert code == 1 and "KM204" in err and "gemm_nt_fp32" in err


def test_github_annotations(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"impl": 1, "selection": 2, "a": 1, "a": 2}')
    code, out, _ = cli(capsys, "check", str(tmp_path / "x.json"), "--format", "github")
    assert code == 1
    assert out.startswith(f"::error file={tmp_path}/x.json,line=1,col=37,title=KM009::duplicate key")


@pytest.mark.parametrize("target", [("qwen35_moe",), (MODEL,), ("qwen35_moe", "--model", MODEL)])
def test_resolve_json_is_a_plan(capsys: pytest.CaptureFixture[str], target: tuple[str, ...]) -> None:
    code, out, _ = cli(capsys, "resolve", *target, "--host", "avx2_2core", "--format", "json")
    assert code == 0
    value = json.loads(out)
    digest = value.pop("digest")
    plan = Plan.model_validate_json(json.dumps(value))
    assert plan.digest == digest
    jsonschema.validate(value, json.loads(schema_text("plan")))
    chosen = {d.phase.value: d.provider for d in plan.decisions if d.name == "routed_experts"}
    assert chosen == {"prefill": BUCKETED, "decode": "moe_swiglu_expert_forward_q4k_q5k_packed"}


def test_phase_only_filters_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _, both, _ = cli(capsys, "resolve", "qwen35_moe", "--host", "avx2_2core")
    _, one, _ = cli(capsys, "resolve", "qwen35_moe", "--host", "avx2_2core", "--phase", "decode")
    assert "prefill  layers" in both and "prefill  layers" not in one
    assert both.splitlines()[-2] == one.splitlines()[-2], "the plan and its digest are the same"


def test_output_fits_eighty_columns_and_has_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("resolve", "qwen35_moe"),
        ("explain", MODEL, "routed_experts", "--why-not", BUCKETED),
        ("host",),
        ("list",),
    ):
        _, out, _ = cli(capsys, *arguments)
        assert "\x1b" not in out
        assert not [line for line in out.splitlines() if len(line) > 80]


def test_route_selects_the_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cli(capsys, "resolve", MODEL, "--route", f"routed_experts:prefill={BUCKETED}", "--phase", "prefill")
    assert code == 0 and f"> {BUCKETED}" in out


def test_explain_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    candidate = "moe_swiglu_shared_forward_q8_0_gated_packed"
    code, out, _ = cli(capsys, "explain", "qwen35_moe", "shared_experts", "--why-not", candidate)
    said = " ".join(out.split())
    assert code == 0
    assert f"{candidate} is not selected for shared_experts (prefill): a candidate, and no route allows it." in said
    assert f"selected with: --route shared_experts:prefill={candidate}" in said


def test_policy_file_is_obeyed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"schema_version": 1, "exclude": ["moe_swiglu_shared_forward_q8_0_gated"]}))
    code, _, err = cli(capsys, "resolve", "qwen35_moe", "--policy", str(path))
    assert code == 1 and "KM450" in err and "KM411 excluded by policy" in err and "KM401 no route allows it" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("resolve",), 2, "Missing argument"),
        (("resolve", "qwen35_moe", "--phase", "never"), 2, "--phase"),
        (("resolve", "qwen35_moe", "--evidence", "perhaps"), 2, "--evidence"),
        (("frobnicate",), 2, "frobnicate"),
        (("resolve", "qwen35"), 1, "KM301"),
        (("resolve", "missing.gguf"), 1, "KM6"),
        (("resolve", "qwen35_moe", "--route", "x"), 1, "KM751"),
        (("resolve", "qwen35_moe", "--host", "avx2_2cor"), 1, "avx2_2core"),
        (("resolve", "qwen35_moe", "--pin", "routed_experts=moe_softmax_topk_router_llama_f32"), 1, "KM455"),
        (("resolve", "qwen35_moe", "--maps", "no/such/folder"), 1, "KM216"),
        (("explain", "qwen35_moe", "routed"), 1, "KM458"),
        (("explain", "qwen35_moe", "routed_experts", "--why-not", "gemm_nt_fp32"), 1, "KM459"),
        (("show", "gemm_nt_fp"), 1, "gemm_nt_fp32"),
        (("schema", "contrakt"), 1, "contract"),
        (("rule", "KM999"), 1, "KM902"),
        (("run", "qwen35_moe"), 1, "KM543"),
        (("run", MODEL, "--inputs", __file__), 1, "KM540"),
        (("check", "no_such.json"), 1, "KM001"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_wrong_use_is_told(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    got, out, err = cli(capsys, *arguments)
    assert (got, said in out + err) == (code, True), out + err


def test_errors_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cli(capsys, "resolve", "qwen35", "--format", "json")
    assert code == 1
    assert json.loads(out)["diagnostics"][0]["near"] == ["qwen35_moe"]


def test_unexpected_errors_print_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELMAP_TRACEBACK", raising=False)

    def broken(*_args: object, **_kwargs: object) -> int:
        raise RuntimeError("boom\nbang")

    monkeypatch.setattr(main, "app", broken)
    code, _, err = cli(capsys, "list")
    assert code == 1 and "KM901" in err and "boom bang" in err and "KERNELMAP_TRACEBACK=1" in err
    monkeypatch.setenv("KERNELMAP_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        run(["list"])


def test_interrupt_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object, **_kwargs: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupted)
    code, _, err = cli(capsys, "list")
    assert code == 130 and err == "interrupted\n"


def test_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m kernelmap schema circuit | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""


def test_help_names_every_schema(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = cli(capsys, "schema", "--help")
    assert not [name for name in SCHEMAS if name not in out.replace(",", " ").replace(".", " ").split()]


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schema_prints_the_generated_schema(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = cli(capsys, "schema", name)
    assert code == 0 and json.loads(out)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(json.loads(out))


def test_every_command_has_a_json_format(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("list",),
        ("list", "--group", "fp32_weight_fp32_internal_fp32_output"),
        ("show", "gemm_nt_fp32"),
        ("show", "fp32_weight_fp32_internal_fp32_output"),
        ("schema", "host"),
        ("rule",),
        ("rule", "km203"),
        ("inventory", MODEL),
        ("host",),
        ("host", "--list"),
        ("explain", MODEL, "router"),
    ):
        code, out, _ = cli(capsys, *arguments, "--format", "json")
        assert code == 0 and isinstance(json.loads(out), dict), arguments


def test_scaffolded_provider_passes_check(tmp_path: Path) -> None:
    """In a copy of the package's own environment: a third-party package registered through an entry point."""
    package = tmp_path / "site" / "acme_kernels"
    (package / "kernel_maps").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    info = tmp_path / "site" / "acme_kernels-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[kernelmap.providers]\nacme = acme_kernels\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "kernelmap", *arguments]
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=False, cwd=tmp_path)

    group = "fp32_weight_fp32_internal_fp32_output"
    made = command("new", "provider", "acme_gemm", "--group", group, "--package", "acme_kernels")
    assert made.returncode == 0, made.stderr
    checked = command("check", str(package / "kernel_maps" / "acme_gemm.json"))
    assert checked.returncode == 0, checked.stderr
    listed = command("list", "--group", group)
    assert "acme_gemm" in listed.stdout
    again = command("new", "provider", "acme_gemm", "--group", group, "--package", "acme_kernels")
    assert again.returncode == 1 and "KM903" in again.stderr
    unknown = command("new", "provider", "other", "--group", group, "--package", "nobody")
    assert unknown.returncode == 1 and "KM904" in unknown.stderr
    assert not (package / "other.py").exists()


def test_check_of_a_mixed_folder_reports_every_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A folder with a map, a circuit, a policy and two files that are nothing: each by its own kind."""
    item = json.loads((ROOT / "kernel_maps/gemm_nt_fp32.json").read_text())
    item |= {"id": "mine", "selection": item["selection"] | {"priority": 3}}
    (tmp_path / "mine.json").write_text(json.dumps(item))
    (tmp_path / "qwen35_moe.json").write_text((ROOT / "circuits/qwen35_moe.json").read_text())
    (tmp_path / "policy.json").write_text('{"schema_version": 1, "exclude": []}')
    code, out, _ = cli(capsys, "check", str(tmp_path))
    assert code == 0 and "checked 1 map, 1 circuit, 1 other file: 0 errors" in out
    (tmp_path / "what.json").write_text('{"a": 1}')
    (tmp_path / "torn.json").write_text('{"a": ')
    code, _, err = cli(capsys, "check", str(tmp_path))
    assert code == 1 and "KM905" in err and "KM008" in err and "KM10" not in err


def test_a_second_process_binds_without_compiling(tmp_path: Path) -> None:
    """`warm` compiles into the cache; another process then loads every variant of every shipped circuit."""
    environ = {**os.environ, "KERNELMAP_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-m", "kernelmap", "warm", "qwen35_moe", "--format", "json"]
    first = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    names = {item["provider"] for item in json.loads(first.stdout)["warmed"]}
    assert BUCKETED in names
    code = (
        "import sys\n"
        "from kernelmap_providers.jit.store import observed\n"
        "from kernelmap.cli.main import run\n"
        "events = []\n"
        "with observed(events.append):\n"
        "    run(['warm', 'qwen35_moe', '--format', 'json'])\n"
        "compiled = [e for e in events if e.kind != 'loaded']\n"
        "sys.exit(f'compiled {compiled}' if compiled or not events else 0)\n"
    )
    again = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr


LONG = "a" * 5000
DIGITS = "1" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ("resolve", LONG),
        ("check", LONG),
        ("inventory", LONG),
        ("host", LONG),
        ("audit", "--maps", LONG),
        ("report", "qwen35_moe", "--host", LONG),
        ("report", "qwen35_moe", "--host", "avx2_2core", "--output", LONG),
        ("lock", "qwen35_moe", "--output", LONG),
        ("diff", LONG, LONG),
        ("foreign", LONG),
        ("certify", "gemv_fp32", "--into", LONG),
        ("bench", LONG),
        ("bench", "qwen35_moe", "--threads", DIGITS),
        ("bench", "qwen35_moe", "--shape", f"R={DIGITS}"),
        ("run", MODEL, "--tokens", DIGITS[:30]),
    ],
    ids=lambda words: " ".join(words)[:30],
)
def test_words_too_long_for_the_system_are_told_as_any_other(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, _, err = cli(capsys, *words)
    assert code in (1, 2) and "KM901" not in err and err


def test_memory_that_is_not_there_is_no_unexpected_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wants_too_much(*_args: object, **_kwargs: object) -> int:
        raise MemoryError("Unable to allocate 29.1 TiB")

    monkeypatch.setattr(main, "app", wants_too_much)
    code, _, err = cli(capsys, "list")
    assert code == 1 and "KM527" in err and "29.1 TiB" in err


@pytest.mark.parametrize("words", ["rule", "schema circuit", "show nobody --format json"])
@pytest.mark.parametrize(
    ("streams", "wanted", "said"),
    [(">/dev/full", 1, "KM832"), (">&-", None, ""), (">&- 2>&- <&-", None, ""), (">/dev/full 2>/dev/full", 1, "")],
)
def test_streams_that_are_full_or_closed_give_no_traceback(
    words: str, streams: str, wanted: int | None, said: str
) -> None:
    command = f"{sys.executable} -m kernelmap {words} {streams}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == (("nobody" in words) if wanted is None else wanted)
    assert "Traceback" not in done.stderr and said in done.stderr and "Exception ignored" not in done.stderr


def test_an_encoding_that_lacks_a_character_is_no_error() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "kernelmap", "show", "moe_swiglu_expert_forward_q4k_q5k"]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0 and done.stdout.isascii() and not done.stderr


def test_texts_of_files_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    value = json.loads((ROOT / "kernel_maps/gemm_nt_fp32.json").read_text())
    summary = "\x1b[31mred\x9b1m\u202edesrever\rover"
    value["selection"] |= {"status": "candidate", "priority": 1}
    value |= {"id": "mine", "summary": summary}
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[1m"))
    folder.mkdir()
    (folder / "mine.json").write_text(json.dumps(value))
    for output in ("text", "json"):
        code, out, _ = cli(capsys, "show", "mine", "--maps", str(folder), "--format", output)
        assert code == 0 and not set(out) & set("\x1b\x9b\u202e\r\udcff"), output
    assert json.loads(out)["value"]["summary"] == summary


def test_an_interruption_while_the_command_is_imported_is_quiet() -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background shell ignores it
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'kernelmap.cli.options': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from kernelmap.cli.start import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
