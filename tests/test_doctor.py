"""Preflight (case C4 and the causes of AW3xx): every finding that is not ok says what to do."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright import doctor
from archwright.doctor import Finding, Level, examine, is_fit
from archwright.environment import Environment
from archwright.targets import target_table

SM100 = target_table().targets["sm100"]

pytestmark = pytest.mark.usefixtures("fit")


@pytest.fixture
def fit(
    cache: Path, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, environment: Environment
) -> None:
    """A machine that is fit: x86_64, a fitting g++ in CXX, much memory and disk, and an environment."""
    good = (
        'case "$*" in *-dump*) echo 14.2.0 ;; *-dM*) cat >/dev/null; echo __cpp_lib_format ;; *) cat >/dev/null ;; esac'
    )
    monkeypatch.setenv("CXX", str(script("g++-14", good)))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "available_memory", lambda: 64 << 30)
    monkeypatch.setattr(doctor, "free_bytes", lambda path: 100 * 10**9)
    monkeypatch.setattr(doctor, "find_environment", lambda target, python=None: environment)


def findings(target: str = "sm100", python: str | None = sys.executable) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(target_table().targets[target], python=python)}


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
    assert json.dumps([finding.as_dict() for finding in found.values()])


def test_c4_stray_variables_are_mentioned_and_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    stray = {"CUDA_HOME": "/usr/local/cuda-11", "NVCC_PREPEND_FLAGS": "-G", "CPATH": "/x", "LD_LIBRARY_PATH": "/y"}
    for name, value in stray.items():
        monkeypatch.setenv(name, value)

    found = findings()

    assert found["variables"].level is Level.NOTE
    for name, value in stray.items():
        assert f"{name}={value}" in found["variables"].found
        assert name in found["variables"].fix
    assert is_fit(tuple(found.values()))


@pytest.mark.parametrize("named", ["/bin/true", "/nowhere/g++"])
def test_c4_cxx_that_is_no_gcc(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", named)
    assert_failed(findings()["compiler"], "AW303")


def test_a_compiler_without_libdw(script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'cat >/dev/null; case "$*" in *-dump*) echo 14.2.0 ;; *-dM*) echo __cpp_lib_format ;; *) exit 1 ;; esac'
    monkeypatch.setenv("CXX", str(script("g++-bare", text.replace("cat >/dev/null; ", ""))))
    assert_failed(findings()["libdw"], "AW313")


def test_no_compiler_and_none_to_provision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_compiler", lambda: None)
    monkeypatch.setattr(doctor, "can_provision", lambda: False)
    assert_failed(findings()["compiler"], "AW303")

    monkeypatch.setattr(doctor, "can_provision", lambda: True)
    assert findings()["compiler"].level is Level.OK


@pytest.mark.parametrize(("version", "code"), [("3.11", "AW302"), ("3.13", "AW302"), ("/nowhere/python", "AW301")])
def test_the_wrong_python(version: str, code: str) -> None:
    assert_failed(findings(python=version)["python"], code)


def test_d1_too_little_memory_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 4 << 30)
    finding = findings()["memory"]
    assert_failed(finding, "AW309")
    assert "fmha_cutlass_bwd_sm100.cu" in finding.needed


def test_c5_too_little_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "free_bytes", lambda path: 2 * 10**9)
    assert_failed(findings()["disk"], "AW308")


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "ppc64le")])
def test_another_system(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert_failed(findings()["system"], "AW310")


def test_f3_an_arm_machine_is_told_which_gap_it_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    finding = findings()["cells"]
    assert_failed(finding, "AW105")
    assert "aarch64" in finding.found
    assert "issue" in finding.why


@pytest.mark.parametrize("target", ["sm90", "ascend950"])
def test_targets_that_are_not_built_yet_are_not_fit(target: str) -> None:
    found = findings(target)
    assert not is_fit(tuple(found.values()))
    assert_failed(found["cells"], "AW105")
    assert_failed(found["environment"], "AW307")


def test_b3_an_nccl_that_is_too_old_for_deep_ep(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

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
    assert is_fit(tuple(found.values()))


def test_without_a_device_it_says_what_cannot_be_verified() -> None:
    finding = findings()["device"]
    assert finding.level is Level.NOTE
    if "none" in finding.found:
        assert "cannot be verified" in finding.found
