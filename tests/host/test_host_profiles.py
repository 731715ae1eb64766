"""Host profiles: those that come with kernelmap, and wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelmap.errors import KernelmapError
from kernelmap.host import load_host, profile_names
from kernelmap.rules.hosts import RULES

NAMES = ("avx2_2core", "avx512_vnni_server", "avx_vnni_client", "neoverse_v2_server")


def test_names() -> None:
    assert profile_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_shipped_profile(name: str) -> None:
    host = load_host(name)
    assert host.name == name
    assert host.source
    assert host.memory_bytes >= 2**34
    assert 0 < host.caches.l1d < host.caches.l2 < host.caches.l3


def test_features_are_honest() -> None:
    features = {name: set(load_host(name).isa) for name in NAMES}
    base = {"sse2", "avx", "avx2", "fma", "f16c"}
    assert base < features["avx2_2core"]
    assert not any("vnni" in item or item.startswith("avx512") for item in features["avx2_2core"])
    assert base | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"} < features["avx512_vnni_server"]
    assert "avxvnni" not in features["avx512_vnni_server"]
    assert base | {"avxvnni"} < features["avx_vnni_client"]
    assert not any(item.startswith("avx512") for item in features["avx_vnni_client"])
    assert {"neon", "dotprod", "i8mm", "bf16", "sve", "sve2"} < features["neoverse_v2_server"]
    assert not base & features["neoverse_v2_server"]


def test_wrong_name_has_near_names() -> None:
    with pytest.raises(KernelmapError) as caught:
        load_host("avx512_server")
    (found,) = caught.value.diagnostics
    assert found.code == RULES[0].code
    assert found.near[0] == "avx512_vnni_server"
    assert "neoverse_v2_server" in found.expected


def host(**facts: object) -> dict[str, object]:
    base = {
        "schema_version": 1, "name": "mine", "arch": "x86_64", "cpu": "znver3", "isa": ["avx2", "sse2"], "cores": 2,
        "threads": 4, "memory_bytes": 5,
    }  # fmt: skip
    return {**base, **facts}


def test_own_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(host()))
    assert load_host(path).threads == 4
    assert load_host(str(path)) == load_host(path)
    with pytest.raises(KernelmapError, match="KM001"):
        load_host(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("facts", "code", "part"),
    [
        ({"isa": ["avx2", "sse2", "vnni"]}, "KM107", "unknown ISA feature vnni"),
        ({"isa": ["sse2", "avx2"]}, "KM107", "sorted"),
        ({"isa": ["sse2", "sse2"]}, "KM107", "once"),
        ({"arch": "amd64"}, "KM104", "/arch"),
        ({"cores": 0}, "KM106", "/cores"),
        ({"threads": 1}, "KM107", "not 1"),
        ({"memory_bytes": "24G"}, "KM103", "/memory_bytes"),
        ({"devices": []}, "KM106", "/devices"),
        ({"gpu": 1}, "KM102", "gpu"),
    ],
)
def test_wrong_profile(facts: dict[str, object], code: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(host(**facts)))
    with pytest.raises(KernelmapError) as caught:
        load_host(path)
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert part in found.message


@pytest.mark.parametrize("field", ["name", "cpu"])
@pytest.mark.parametrize("text", ["a\n::error::b", "a\n", "\x1b[31m", "\x85"])
def test_names_are_on_one_line(tmp_path: Path, field: str, text: str) -> None:
    """Else a profile could write lines of its own into what is printed, and workflow commands into a log."""
    value = load_host("avx2_2core").model_dump(mode="json", by_alias=True) | {field: text}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(KernelmapError) as caught:
        load_host(path)
    assert [item.place.pointer for item in caught.value.diagnostics if item.place] == [f"/{field}"]
