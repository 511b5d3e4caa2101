"""Checks of the machine: each row in both states, by really provoking it where that is cheap."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archwright import machine, plan, repairs
from archwright.findings import Finding, Level
from archwright.machine import (
    check_compiler,
    check_compiler_cache,
    check_device,
    check_libc,
    check_locale,
    check_memory,
    check_python,
    check_system,
    check_variables,
    glibc_version,
    size_in_bytes,
)
from archwright.targets import target_table

SM100 = target_table().targets["sm100"]

Script = Callable[[str, str], Path]

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def gxx(script: Script) -> Callable[..., Path]:
    """Write a program that answers like a g++."""

    def write(name: str, version: str, *, libdw: bool = True) -> Path:
        rest = f"*-dM*) cat >/dev/null ;; *) cat >/dev/null; exit {0 if libdw else 1} ;;"
        return script(name, f'case "$*" in *-dump*) echo {version} ;; {rest} esac')

    return write


def the(findings: Iterator[Finding], check: str) -> Finding:
    return {finding.check: finding for finding in findings}[check]


def lines(finding: Finding) -> list[str]:
    return [str(repair) for repair in finding.repairs]


def assert_not_ok(finding: Finding, level: Level, code: str) -> None:
    assert (finding.level, finding.code) == (level, code)
    assert all((finding.found, finding.needed, finding.why, finding.fix))


@pytest.mark.parametrize(("system", "processor"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "ppc64le")])
def test_another_system(system: str, processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    assert_not_ok(the(check_system(), "system"), Level.FAIL, "AW310")


def test_this_system() -> None:
    finding = the(check_system(), "system")
    assert finding.level is Level.OK
    assert platform.machine() in finding.found


def test_the_c_library_says_its_version_itself() -> None:
    said = subprocess.run(["getconf", "GNU_LIBC_VERSION"], capture_output=True, text=True).stdout.split()
    if len(said) != 2:
        pytest.skip("no getconf of glibc")
    assert glibc_version() == said[1]


@pytest.mark.parametrize(
    ("processor", "version", "level"),
    [
        ("x86_64", "2.28", Level.OK),
        ("x86_64", "2.9", Level.FAIL),
        ("x86_64", "2.27", Level.FAIL),
        ("x86_64", "", Level.FAIL),
        ("aarch64", "2.34", Level.OK),
        ("aarch64", "2.31", Level.FAIL),
    ],
)
def test_g6_a_c_library_that_is_too_old(
    processor: str, version: str, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(machine, "glibc_version", lambda: version)

    finding = the(check_libc(), "C library")

    assert (finding.level, finding.code) == (level, "AW324")
    if level is Level.FAIL:
        assert_not_ok(finding, level, "AW324")
        assert target_table().processors[processor] in finding.needed


@pytest.mark.parametrize(("version", "code"), [("3.11", "AW302"), ("3.13", "AW302"), ("/nowhere/python", "AW301")])
def test_the_wrong_python(version: str, code: str) -> None:
    finding = the(check_python(version), "python")
    assert_not_ok(finding, Level.FAIL, code)
    assert finding.repairs == (), "another Python would not be the one that was named"


def test_without_a_python_pyenv_makes_one(
    only: Path, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert lines(the(check_python(None), "python")) == []

    script("pyenv", "exit 0")
    finding = the(check_python(None), "python")

    assert_not_ok(finding, Level.FAIL, "AW301")
    assert lines(finding) == ["pyenv install --skip-existing 3.12"]


@pytest.mark.parametrize("named", ["/bin/true", "/nowhere/g++"])
def test_c4_cxx_that_is_no_gcc(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", named)
    finding = the(check_compiler(), "compiler")
    assert_not_ok(finding, Level.FAIL, "AW303")
    assert lines(finding) == ["unset CXX"]


def test_a_compiler_that_fits(gxx: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(gxx("my-g++", "14.2.0")))
    found = {finding.check: finding for finding in check_compiler()}
    assert {check: (f.level, f.code) for check, f in found.items()} == {
        "compiler": (Level.OK, "AW303"),
        "libdw": (Level.OK, "AW313"),
    }


def test_a_compiler_without_libdw(
    gxx: Callable[..., Path], script: Script, only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(gxx("my-g++", "14.2.0", libdw=False)))
    assert_not_ok(the(check_compiler(), "libdw"), Level.FAIL, "AW313")


def test_cxx_that_is_newer_than_nvcc_accepts(gxx: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(gxx("my-g++", "16.1.0")))
    finding = the(check_compiler(), "compiler")
    assert_not_ok(finding, Level.FAIL, "AW323")
    assert "16.1.0" in finding.found
    assert lines(finding) == ["unset CXX"]


def test_a_newer_gcc_on_path_is_passed_over_and_mentioned(gxx: Callable[..., Path], only: Path) -> None:
    gxx("g++", "16.1.0")
    older = gxx("g++-14", "14.2.0")

    found = {finding.check: finding for finding in check_compiler()}

    assert_not_ok(found["newer compiler"], Level.NOTE, "AW323")
    assert str(older) in found["compiler"].found


def test_no_compiler_and_none_to_provision(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "can_provision", lambda: False)
    assert_not_ok(the(check_compiler(), "compiler"), Level.FAIL, "AW303")

    monkeypatch.setattr(machine, "can_provision", lambda: True)
    assert the(check_compiler(), "compiler").level is Level.OK


def test_d1_too_little_memory_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(plan, "available_memory", lambda: 4 << 30)
    finding = the(check_memory(SM100), "memory")
    assert_not_ok(finding, Level.FAIL, "AW309")
    assert "fmha_cutlass_bwd_sm100.cu" in finding.needed

    monkeypatch.setattr(plan, "available_memory", lambda: 64 << 30)
    finding = the(check_memory(SM100), "memory")
    assert (finding.level, finding.code) == (Level.OK, "AW309")


def test_memory_for_what_cannot_be_built_yet_is_only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_components", lambda target, processor: ())
    finding = the(check_memory(target_table().targets["ascend950"]), "memory")
    assert finding.level is Level.OK
    assert "nothing of ascend950 can be built yet" in finding.found


def test_max_jobs_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("MAX_JOBS", "all")
    finding = the(check_memory(SM100), "memory")
    assert_not_ok(finding, Level.FAIL, "AW109")
    assert lines(finding) == ["unset MAX_JOBS"]


@pytest.fixture
def language(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def choose(**settings: str) -> None:
        for name in ("LC_ALL", "LC_CTYPE", "LANG", "LOCPATH", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)

    return choose


@pytest.fixture
def latin1(tmp_path: Path) -> dict[str, str]:
    """Settings of a language that is not UTF-8, made for this test."""
    folder = tmp_path / "locales"
    folder.mkdir()
    command = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(folder / "de_DE.ISO-8859-1")]
    if shutil.which("localedef") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("localedef makes no locale here")
    return {"LOCPATH": str(folder), "LC_ALL": "de_DE.ISO-8859-1"}


@pytest.mark.parametrize(
    "settings", [{"LC_ALL": "C"}, {}, {"LC_ALL": "C.UTF-8"}, {"LANG": "xx_YY.UTF-8"}], ids=["C", "none", "UTF-8", "odd"]
)
def test_python_uses_utf8_in_the_c_locale_too(settings: dict[str, str], language: Callable[..., None]) -> None:
    language(**settings)
    finding = the(check_locale(), "locale")
    assert (finding.level, finding.code) == (Level.OK, "AW325")


def test_a_language_that_is_not_utf8_does_no_harm_while_paths_are_ascii(
    latin1: dict[str, str], language: Callable[..., None]
) -> None:
    language(**latin1)
    finding = the(check_locale(), "locale")
    assert_not_ok(finding, Level.NOTE, "AW325")
    assert "LC_ALL=de_DE.ISO-8859-1" in finding.found
    assert lines(finding) == ["export LC_ALL=C.UTF-8"]


def test_with_a_path_that_is_not_ascii_it_is_a_failure(
    latin1: dict[str, str], language: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "café"))
    language(**latin1)
    finding = the(check_locale(), "locale")
    assert_not_ok(finding, Level.FAIL, "AW325")
    assert "caf" in finding.why

    language(LC_ALL="C.UTF-8")
    assert the(check_locale(), "locale").level is Level.OK


def test_utf8_that_was_switched_off(language: Callable[..., None]) -> None:
    language(LC_ALL="C", PYTHONUTF8="0")
    finding = the(check_locale(), "locale")
    assert_not_ok(finding, Level.NOTE, "AW325")
    assert lines(finding) == ["export LC_ALL=C.UTF-8", "unset PYTHONUTF8"]


def test_c4_stray_variables_are_mentioned_and_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert the(check_variables(), "variables").level is Level.OK
    stray = {"CUDA_HOME": "/usr/local/cuda-11", "NVCC_PREPEND_FLAGS": "-G", "CPATH": "/x", "LD_LIBRARY_PATH": "/y"}
    for name, value in stray.items():
        monkeypatch.setenv(name, value)

    finding = the(check_variables(), "variables")

    assert_not_ok(finding, Level.NOTE, "AW329")
    for name, value in stray.items():
        assert f"{name}={value}" in finding.found
        assert name in finding.fix
    assert lines(finding) == ["unset CUDA_HOME NVCC_PREPEND_FLAGS CPATH LD_LIBRARY_PATH"]


def test_no_compiler_cache(only: Path, script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    monkeypatch.setattr(repairs, "_APT_LISTS", tmp_path / "lists")

    finding = the(check_compiler_cache(), "compiler cache")

    assert_not_ok(finding, Level.NOTE, "AW330")
    assert finding.repairs == (), "there is no apt here"

    script("sccache", "exit 0")
    assert the(check_compiler_cache(), "compiler cache").level is Level.OK


@pytest.fixture
def ccache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The real ccache, with a configuration file of its own."""
    if shutil.which("ccache") is None:
        pytest.skip("no ccache on PATH")
    for name in [name for name in os.environ if name.startswith("CCACHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CCACHE_CONFIGPATH", str(tmp_path / "ccache.conf"))

    def configure(text: str) -> None:
        (tmp_path / "ccache.conf").write_text(text + "\n")

    configure("")
    return configure


def test_a_ccache_that_is_ready(ccache: Callable[[str], None]) -> None:
    finding = the(check_compiler_cache(), "compiler cache")
    assert (finding.level, finding.code) == (Level.OK, "AW330")

    ccache("max_size = 0")
    assert the(check_compiler_cache(), "compiler cache").level is Level.OK, "0 is no limit"


def test_a_ccache_that_is_disabled(ccache: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    ccache("disable = true")
    finding = the(check_compiler_cache(), "compiler cache")
    assert_not_ok(finding, Level.NOTE, "AW330")
    assert lines(finding) == ["ccache --set-config=disable=false"]
    subprocess.run(finding.repairs[0].command, check=True)
    assert the(check_compiler_cache(), "compiler cache").level is Level.OK, "the repair is the right one"

    monkeypatch.setenv("CCACHE_DISABLE", "1")
    assert lines(the(check_compiler_cache(), "compiler cache")) == ["unset CCACHE_DISABLE"]


def test_a_ccache_that_is_too_small(ccache: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    ccache("max_size = 500M")
    finding = the(check_compiler_cache(), "compiler cache")
    assert_not_ok(finding, Level.NOTE, "AW330")
    assert "0.5 GB" in finding.found
    subprocess.run(finding.repairs[0].command, check=True, capture_output=True)
    assert the(check_compiler_cache(), "compiler cache").level is Level.OK, "the repair is the right one"

    monkeypatch.setenv("CCACHE_MAXSIZE", "1G")
    assert lines(the(check_compiler_cache(), "compiler cache")) == ["unset CCACHE_MAXSIZE"]


def test_a_compiler_cache_that_builds_are_told_not_to_use(
    ccache: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_NO_CACHE", "1")
    assert lines(the(check_compiler_cache(), "compiler cache")) == ["unset ARCHWRIGHT_NO_CACHE"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5.0G", 5 * 10**9),
        ("5.0 GB", 5 * 10**9),
        ("5 GiB", 5 * 10**9),
        ("500M", 500 * 10**6),
        ("0", 0),
        ("0.0 kB", 0),
        ("1T", 10**12),
        ("no limit", 0),
    ],
)
def test_sizes_of_ccache(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


def test_a_device_and_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "version"
    monkeypatch.setattr(machine, "_DRIVERS", (tmp_path / "other", driver))
    finding = the(check_device(), "device")
    assert_not_ok(finding, Level.NOTE, "AW331")
    assert "cannot be verified" in finding.found

    driver.touch()
    finding = the(check_device(), "device")
    assert (finding.level, finding.code) == (Level.OK, "AW331")
