"""Preflight (case C4 and the causes of AW3xx): every finding has a page, and one that is not ok says what to do."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import doctor, folders, plan
from archwright.compiler import MAXIMUM, NVCC_MAXIMUM
from archwright.doctor import Finding, Level, examine, is_fit
from archwright.environment import Environment
from archwright.targets import target_table

from . import canntree
from .canntree import activate, make_cann

no_cann = canntree.no_cann

pytestmark = pytest.mark.usefixtures("fit")

Script = Callable[[str, str], Path]

NVCC = "echo Cuda compilation tools, release {release}, V{release}.86"


@pytest.fixture
def toolkit(environment: Environment) -> Callable[..., None]:
    """Fill the made-up environment's toolkit: an nvcc that says its release, and the headers that say theirs."""

    def write(nvcc: str = "13.2", headers: int = 13020, limit: str = "#if __GNUC__ > 15") -> None:
        program, include = environment.toolkit / "bin" / "nvcc", environment.toolkit / "include"
        program.write_text("#!/bin/sh\n" + NVCC.format(release=nvcc))
        program.chmod(0o755)
        (include / "crt").mkdir(parents=True, exist_ok=True)
        (include / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {headers}\n")
        (include / "cuda.h").write_text(f"#define CUDA_VERSION {headers}\n")
        (include / "crt" / "host_config.h").write_text(f"#if defined(__GNUC__)\n\n{limit}\n#error\n#endif\n")

    write()
    return write


@pytest.fixture
def fit(
    cache: Path,
    script: Script,
    pip_answers_at_once: None,
    monkeypatch: pytest.MonkeyPatch,
    environment: Environment,
    toolkit: Callable[..., None],
) -> None:
    """A machine that is fit: x86_64, a fitting g++ in CXX, much memory and disk, and an environment."""
    good = (
        'case "$*" in *-dump*) echo 14.2.0 ;; *-dM*) cat >/dev/null; echo __cpp_lib_format ;; *) cat >/dev/null ;; esac'
    )
    monkeypatch.setenv("CXX", str(script("g++-14", good)))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(plan, "available_memory", lambda: 64 << 30)
    monkeypatch.setattr(folders, "free_bytes", lambda path: 100 * 10**9)
    monkeypatch.setattr(doctor, "find_environment", lambda target, python=None: environment)
    (cache / "envs").mkdir(parents=True)
    for name in [n for n in os.environ if n.lower().endswith("_proxy") or n.startswith("CCACHE_")]:
        monkeypatch.delenv(name)


def findings(target: str = "sm100", python: str | None = sys.executable) -> dict[str, Finding]:
    found = examine(target_table().targets[target], python=python)
    assert len({finding.check for finding in found}) == len(found), "each row has its own name"
    return {finding.check: finding for finding in found}


def assert_failed(finding: Finding, code: str) -> None:
    assert finding.level is Level.FAIL
    assert finding.code == code
    assert finding.found
    assert finding.needed
    assert finding.why
    assert finding.fix


def test_a_machine_that_is_fit() -> None:
    found = findings()

    assert is_fit(tuple(found.values()))
    assert "deep_ep" in found["cells"].found
    assert "tilelang_ops" in found["cells"].found, "what is not built yet is named"
    assert found["toolchain"].found == "nvcc 13.2.86, GCC 14.2.0"
    assert found["CUDA release"].found == "13.2 throughout"
    assert "accepts up to 15" in found["GCC for nvcc"].found
    assert json.dumps([finding.as_dict() for finding in found.values()])


#: The rows of a machine that is fit, and the code of the page that explains each.
ROWS = {
    "system": "AW310",
    "C library": "AW324",
    "cells": "AW105",
    "locale": "AW325",
    "folders": "AW327",
    "temporary folder": "AW326",
    "disk": "AW308",
    "python": "AW301",
    "compiler": "AW303",
    "libdw": "AW313",
    "memory": "AW309",
    "proxy": "AW328",
    "variables": "AW329",
    "compiler cache": "AW330",
    "environment": "AW307",
    "toolchain": "AW305",
    "CUDA release": "AW311",
    "GCC for nvcc": "AW323",
    "torch": "AW307",
    "nccl": "AW312",
    "device": "AW331",
}


#: Those that only Ascend has, on a machine with a CANN.
ASCEND_ROWS = {
    "torch_npu": "AW340",
    "CANN": "AW334",
    "CANN version": "AW336",
    "CANN processor": "AW339",
    "CANN environment": "AW335",
    "one CANN": "AW337",
    "bisheng": "AW338",
    "ld.lld": "AW338",
    "CANN headers": "AW338",
    "CANN runtime": "AW338",
    "CMake package ASC": "AW338",
}


def test_each_row_names_the_page_that_explains_it_also_when_all_is_well() -> None:
    found = findings()
    assert {check: finding.code for check, finding in found.items() if not check.startswith("disk:")} == ROWS
    assert found["memory"].as_dict()["page"] == "docs/errors/AW309.md"


@pytest.mark.parametrize("target", ["sm100", "sm90", "ascend950"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
@pytest.mark.parametrize("created", [True, False])
def test_every_row_of_every_target_has_a_page(
    target: str, machine: str, created: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    if not created:
        monkeypatch.setattr(doctor, "find_environment", lambda target, python=None: None)

    for finding in findings(target).values():
        page = root / finding.as_dict()["page"]
        assert page.is_file(), finding
        assert finding.code in page.read_text()
        assert finding.level is Level.OK or finding.fix, finding


def test_the_manual_has_every_row_and_code(root: Path) -> None:
    table = [line.split("|") for line in (root / "docs" / "doctor.md").read_text().splitlines() if line.startswith("|")]
    pages = {check.strip(): cells for _, checks, *cells in table for check in checks.split(",")}
    for check, code in (ROWS | ASCEND_ROWS).items():
        assert f"[{code}](errors/{code}.md)" in pages[check][1]


def test_it_changes_nothing_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    """In a process of its own, with a home of its own."""
    home = tmp_path / "home"
    home.mkdir()
    (cache / "envs").rmdir()
    cache.rmdir()
    env = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "ARCHWRIGHT_CACHE": str(home / "cache")}
    env |= {"UV_CACHE_DIR": str(home / "uv"), "CCACHE_DIR": str(home / "ccache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "archwright", "doctor", "sm100", "--json"]

    answer = subprocess.run(command, env=env, capture_output=True, text=True)

    assert json.loads(answer.stdout)["findings"], answer.stderr
    left = {path.relative_to(home) for path in home.rglob("*") if "tables" not in path.parts}
    assert left <= {Path("cache")}, "at most the cache folder, and in it what every command notes of its own tables"


def test_a_check_that_cannot_be_made_is_a_row_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that cannot be made ends some checks: it is one failure, said once."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.delenv("CXX")

    found = findings()

    assert_failed(found["folders"], "AW327")
    assert found["memory"].level is Level.NOTE
    assert found["memory"].code == "AW327"
    assert "not checked" in found["memory"].found
    assert [f.check for f in found.values() if f.level is Level.FAIL] == ["folders"]


def test_f3_an_arm_machine_is_told_which_gap_it_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    finding = findings()["cells"]
    assert_failed(finding, "AW105")
    assert "aarch64" in finding.found
    assert "no aarch64 machine" in finding.why


def test_what_is_not_built_yet_is_named() -> None:
    finding = findings("ascend950")["cells"]
    assert finding.level is Level.OK
    assert finding.found == "can be built: engine, flash_mla, tilelang_ops"


def test_a_target_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "has_locks", lambda target: False)
    finding = findings()["environment"]
    assert_failed(finding, "AW307")
    assert "archwright env lock sm100" in finding.fix


def test_cuda_is_no_matter_of_ascend() -> None:
    found = findings("ascend950")
    assert {"toolchain", "CUDA release", "GCC for nvcc", "nccl"} & set(found) == set()
    assert "torch" in found


def test_a_machine_for_ascend(no_cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    activate(make_cann(no_cann / "cann", processor="x86_64"), monkeypatch)

    found = findings("ascend950")

    assert {check: found[check].code for check in found if check not in ROWS} == ASCEND_ROWS
    failed = {check for check, finding in found.items() if finding.level is Level.FAIL}
    assert failed == {"torch_npu"}, "the made-up environment is one without torch_npu"
    assert not ASCEND_ROWS.keys() & findings("sm100").keys()


def test_a_machine_without_cann_is_not_fit_whatever_can_be_built(no_cann: Path) -> None:
    found = findings("ascend950")

    assert_failed(found["CANN"], "AW334")
    assert {check for check, finding in found.items() if finding.code == "AW338"} == {
        *("bisheng", "ld.lld", "CANN headers", "CANN runtime")
    }
    assert not is_fit(finding for check, finding in found.items() if check != "torch_npu")


@pytest.mark.parametrize(("nvcc", "who"), [("13.0.88", "deep_ep"), ("12.8.93", "sm_103a")])
def test_a1_an_nvcc_that_is_too_old(
    nvcc: str, who: str, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = replace(environment, nvcc=nvcc)
    monkeypatch.setattr(doctor, "find_environment", lambda target, python=None: old)

    finding = findings()["toolchain"]

    assert_failed(finding, "AW305")
    assert who in finding.needed


def test_trap_1_cuda_releases_that_are_mixed(toolkit: Callable[..., None]) -> None:
    toolkit(headers=13000)

    finding = findings()["CUDA release"]

    assert_failed(finding, "AW311")
    assert "runtime headers 13.0" in finding.found
    assert str(finding.repairs[0]).endswith("env create sm100 --again")


@pytest.mark.parametrize("damage", ["bin/nvcc", "include/cuda.h"])
def test_a_toolkit_that_was_damaged_since(damage: str, environment: Environment) -> None:
    (environment.toolkit / damage).unlink()

    finding = findings()["CUDA release"]

    assert_failed(finding, "AW307")
    assert str(environment.toolkit) in finding.found
    assert str(finding.repairs[0]).endswith("env create sm100 --again")


@pytest.mark.parametrize("gcc", ["13.3.0", "15.1.0", "16.1.0"])
def test_the_gcc_of_an_environment_is_compared_with_nvccs_own_header(
    gcc: str, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(environment, gcc=gcc)
    monkeypatch.setattr(doctor, "find_environment", lambda target, python=None: other)

    finding = findings()["GCC for nvcc"]

    if gcc == "16.1.0":
        assert_failed(finding, "AW323")
        assert "GCC 15" in finding.needed
        assert str(finding.repairs[0]) == "export CXX=g++-15"
    else:
        assert finding.level is Level.OK


def test_a_newer_toolkit_has_a_newer_limit(
    toolkit: Callable[..., None], environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit(nvcc="13.4", headers=13040, limit="#if __GNUC__ > 16")
    other = replace(environment, gcc="16.1.0", nvcc="13.4.92")
    monkeypatch.setattr(doctor, "find_environment", lambda target, python=None: other)

    assert findings()["GCC for nvcc"].level is Level.OK


def test_without_an_environment_the_limit_is_that_of_the_locked_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_environment", lambda target, python=None: None)
    finding = findings()["GCC for nvcc"]
    assert finding.level is Level.OK
    assert f"accepts GCC up to {MAXIMUM}" in finding.found


def test_what_is_known_of_each_release_is_what_the_toolkits_on_this_machine_say() -> None:
    """The table against the real header of every environment in the user's own cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archwright"
    seen = 0
    for record in cache.glob("envs/*/env.json"):
        found = Environment.load(record)
        if (found.toolkit / "include" / "crt" / "host_config.h").is_file():
            assert doctor._header_limit(found) == NVCC_MAXIMUM[".".join(found.nvcc.split(".")[:2])]
            seen += 1
    if not seen:
        pytest.skip("no environment with a toolkit in the user's cache")


def test_b3_an_nccl_that_is_too_old_for_deep_ep(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace(environment, nccl="2.29.7")
    monkeypatch.setattr(doctor, "find_environment", lambda target, python=None: old)
    finding = findings()["nccl"]
    assert_failed(finding, "AW312")
    assert finding.found == "2.29.7"
    assert "2.32.3" in finding.needed


def test_no_environment_yet_is_only_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_environment", lambda target, python=None: None)
    found = findings()
    assert found["environment"].level is Level.NOTE
    assert "archwright env create sm100" in found["environment"].fix
    assert found["environment"].repairs[0].command[-5:] == ("env", "create", "sm100", "--python", sys.executable)
    assert is_fit(tuple(found.values()))
