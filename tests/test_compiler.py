"""Choosing the host compiler: what CXX names is checked before anything is compiled (case C4)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright import compiler
from archwright.compiler import MAXIMUM, NVCC_MAXIMUM, choose_compiler, find_compiler, too_new_compiler
from archwright.debian import Provisioned
from archwright.errors import ArchwrightError, Exit
from archwright.lockfile import read_lock

Script = Callable[[str, str], Path]

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def fake(script: Script) -> Callable[..., Path]:
    """Write a program that answers like a compiler of some kind."""

    def write(name: str, version: str, *, macros: str = "#define __cpp_lib_format 202110L", libdw: bool = True) -> Path:
        return script(
            name,
            f"case \"$*\" in *-dumpfullversion*) echo {version} ;; *-dM*) cat >/dev/null; echo '{macros}' ;; "
            f"*) cat >/dev/null; exit {0 if libdw else 1} ;; esac",
        )

    return write


def error_of() -> ArchwrightError:
    with pytest.raises(ArchwrightError) as caught:
        find_compiler()
    return caught.value


def test_a_fitting_compiler_on_path_is_found_and_asked(fake: Callable[..., Path], only: Path) -> None:
    path = fake("g++", "14.2.0")

    found = find_compiler()

    assert found is not None
    assert (found.cxx, found.cc, found.version, found.major) == (path, path.with_name("gcc"), "14.2.0", 14)
    assert found.origin == "PATH"
    assert found.has_libdw


def test_the_newest_fitting_one_wins(fake: Callable[..., Path], only: Path) -> None:
    fake("g++", "12.2.0")
    fake("g++-13", "13.3.0")
    newest = fake("g++-15", "15.1.0")

    found = find_compiler()

    assert found is not None
    assert found.cxx == newest
    assert found.cc.name == "gcc-15"


def test_one_that_is_too_old_or_lacks_libdw_is_left_to_provisioning(fake: Callable[..., Path], only: Path) -> None:
    fake("g++", "12.2.0")
    fake("g++-14", "14.2.0", libdw=False)

    assert find_compiler() is None


def test_no_compiler_at_all_is_none(only: Path) -> None:
    assert find_compiler() is None


@pytest.mark.parametrize("version", ["12.2.0", "9.4.0", "4.8.5"])
def test_c4_cxx_that_names_an_old_gcc_is_aw303(
    version: str, fake: Callable[..., Path], only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("g++-14", "14.2.0")
    monkeypatch.setenv("CXX", str(fake("g++-old", version)))

    error = error_of()

    assert error.code == "AW303"
    assert error.exit is Exit.UNFIT
    assert version in error.found
    assert "13" in error.needed
    assert "unset" in error.fix


@pytest.mark.parametrize("version", ["16.1.0", "17.0.1"])
def test_cxx_that_names_a_gcc_newer_than_nvcc_accepts_is_aw323(
    version: str, fake: Callable[..., Path], only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("g++-14", "14.2.0")
    monkeypatch.setenv("CXX", str(fake("g++-new", version)))

    error = error_of()

    assert error.code == "AW323"
    assert error.exit is Exit.UNFIT
    assert version in error.found
    assert error.needed == f"GCC 13 to {MAXIMUM}"


def test_a_newer_gcc_on_path_is_passed_over_for_an_older_one(fake: Callable[..., Path], only: Path) -> None:
    newer = fake("g++", "16.1.0")
    older = fake("g++-15", "15.1.0")

    found, passed_over = find_compiler(), too_new_compiler()

    assert found is not None
    assert found.cxx == older
    assert passed_over is not None
    assert passed_over.cxx == newer


def test_with_only_a_newer_gcc_on_path_one_is_provisioned(
    fake: Callable[..., Path], only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("g++", "16.1.0")
    assert find_compiler() is None

    monkeypatch.setenv("CXX", str(fake("g++-14", "14.2.0")))
    assert too_new_compiler() is None, "CXX chose another: there is nothing to say about PATH"


def test_a_fitting_gcc_is_not_passed_over(fake: Callable[..., Path], only: Path) -> None:
    assert too_new_compiler() is None
    fake("g++", "15.1.0")
    assert too_new_compiler() is None


@pytest.mark.parametrize("target", ["sm100", "sm90"])
def test_the_newest_gcc_is_that_of_the_locked_cuda_release(target: str, root: Path) -> None:
    nvcc = read_lock(root / "envs" / target / "toolchain.lock")["nvidia-cuda-nvcc"].version
    assert NVCC_MAXIMUM[f"{nvcc.major}.{nvcc.minor}"] == MAXIMUM


CLANG = "#define __clang__ 1\n#define __cpp_lib_format 202110L"


@pytest.mark.parametrize("what", ["true", "false", "missing", "clang", "junk"])
def test_c4_cxx_that_names_no_gcc_is_aw303(
    what: str, fake: Callable[..., Path], script: Script, only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {
        "true": lambda: script("cxx", "true"),
        "false": lambda: script("cxx", "false"),
        "missing": lambda: Path("/nowhere/g++"),
        "clang": lambda: fake("clang++", "19.1.0", macros=CLANG),
        "junk": lambda: script("cxx", "echo junk"),
    }[what]()
    monkeypatch.setenv("CXX", str(named))

    error = error_of()

    assert error.code == "AW303"
    assert f"CXX={named}" in error.found


def test_cxx_that_fits_is_taken_before_path(
    fake: Callable[..., Path], only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("g++", "15.1.0")
    named = fake("my-g++", "13.1.0")
    monkeypatch.setenv("CXX", str(named))

    found = find_compiler()

    assert found is not None
    assert (found.cxx, found.origin) == (named, "CXX")


def test_c4_stray_flags_do_not_reach_the_question(
    fake: Callable[..., Path], script: Script, only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPATH", "/stray")
    script(
        "g++",
        '[ -n "$CPATH" ] && exit 1\n'
        'case "$*" in *-dump*) echo 14.2.0 ;; *-dM*) cat >/dev/null; echo __cpp_lib_format ;; '
        "*) cat >/dev/null ;; esac",
    )

    assert find_compiler() is not None


def test_cxx_without_libdw_is_aw313(fake: Callable[..., Path], only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake("my-g++", "14.2.0", libdw=False)))

    with pytest.raises(ArchwrightError) as caught:
        choose_compiler()

    assert caught.value.code == "AW313"
    assert "libdw-dev" in caught.value.fix
    assert "elfutils-devel" in caught.value.fix


def test_without_any_a_compiler_is_provisioned(
    fake: Callable[..., Path], only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Provisioned(fake("provisioned-g++", "14.2.0"), tmp_path / "gcc", tmp_path, {"g++-14_1.deb": "0" * 64})
    asked: list[bool] = []

    def provision(*, offline: bool) -> Provisioned:
        asked.append(offline)
        return made

    monkeypatch.setattr(compiler, "provision", provision)

    found = choose_compiler(offline=True)

    assert asked == [True]
    assert found.cxx == made.cxx
    assert found.packages == made.packages
    assert "Debian" in found.origin


def test_a_provisioned_compiler_that_is_damaged_is_named(
    script: Script, only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Provisioned(script("g++-broken", "exit 1"), tmp_path / "gcc", tmp_path, {})
    monkeypatch.setattr(compiler, "provision", lambda offline: broken)

    with pytest.raises(ArchwrightError) as caught:
        choose_compiler()

    assert caught.value.code == "AW303"
    assert str(broken.cxx) in caught.value.found


def test_the_real_compiler_of_this_machine_is_judged_by_what_it_can_do(
    gcc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever g++ is here: it is accepted exactly when it has <format>."""
    import subprocess

    real = shutil.which("g++")
    if real is None:
        pytest.skip("no g++ on PATH")
    source = '#include <format>\nint main() { return std::format("{}", 1).size() - 1; }\n'
    works = subprocess.run(
        [real, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], input=source, text=True, capture_output=True
    )
    monkeypatch.setenv("CXX", real)

    if works.returncode == 0:
        assert find_compiler() is not None
    else:
        assert error_of().code == "AW303"
