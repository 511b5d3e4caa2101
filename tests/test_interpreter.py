"""Finding the Python that wheels are built for."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archwright.errors import ArchwrightError, Exit
from archwright.interpreter import find_python

Script = Callable[[str, str], Path]

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def fake(script: Script) -> Callable[..., Path]:
    """Write a program that answers like a Python of some kind."""

    def write(
        name: str,
        version: str,
        kind: str = "cpython",
        headers: bool = True,
        free_threaded: bool = False,
        machine: str = platform.machine(),
    ) -> Path:
        answer = json.dumps([kind, version, f"/opt/{name}/bin/python", f"/opt/{name}", headers, free_threaded, machine])
        return script(name, f"echo '{answer}'")

    return write


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PATH holds nothing but the folder of stand-ins; there is no pyenv."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return folder


def error_of(named: str | None = None) -> ArchwrightError:
    with pytest.raises(ArchwrightError) as caught:
        find_python(named)
    return caught.value


def test_the_python_of_these_tests_is_found_by_its_path() -> None:
    found = find_python(sys.executable)

    assert found.version == platform.python_version()
    assert found.machine == platform.machine()
    assert found.has_headers
    assert found.path.is_file()
    assert not found.path.is_symlink(), "the real one, not a shim"


@pytest.mark.parametrize("version", ["3.11", "3.13", "3.11.9", "3.13.0", "3.1", "3.120", "2.7", "4"])
def test_another_version_that_is_asked_for_is_aw302(version: str) -> None:
    error = error_of(version)

    assert error.code == "AW302"
    assert error.exit is Exit.USAGE == 2
    assert version in error.found
    assert "3.12" in error.needed


@pytest.mark.parametrize(("version", "why"), [("3.11.9", "at least"), ("3.13.0", "tested with")])
def test_an_older_and_a_newer_python_have_their_own_reasons(version: str, why: str) -> None:
    assert why in error_of(version).why


@pytest.mark.parametrize("version", ["3.11.9", "3.13.0"])
def test_the_path_of_another_version_is_aw302(version: str, fake: Callable[..., Path]) -> None:
    path = fake("python", version)

    error = error_of(str(path))

    assert error.code == "AW302"
    assert version in error.found


@pytest.mark.parametrize("what", ["missing", "folder", "fails", "prints junk", "prints nothing", "hangs up"])
def test_a_path_that_does_not_run_is_aw301(what: str, tmp_path: Path, script: Script) -> None:
    path = {
        "missing": tmp_path / "nowhere" / "python3.12",
        "folder": tmp_path,
        "fails": script("fails", "exit 1"),
        "prints junk": script("junk", "echo hello"),
        "prints nothing": script("nothing", "true"),
        "hangs up": script("dies", "kill -9 $$"),
    }[what]

    error = error_of(str(path))

    assert error.code == "AW301"
    assert error.exit is Exit.UNFIT == 4
    assert str(path) in error.found


def test_pypy_and_the_free_threaded_build_are_other_abis(fake: Callable[..., Path]) -> None:
    assert error_of(str(fake("pypy", "3.12.1", kind="pypy"))).code == "AW301"
    assert error_of(str(fake("python3.12t", "3.12.1", free_threaded=True))).code == "AW301"


def test_a_python_without_headers_says_how_to_get_them(fake: Callable[..., Path]) -> None:
    error = error_of(str(fake("python", "3.12.4", headers=False)))

    assert error.code == "AW301"
    assert "Python.h" in error.found
    assert "python3.12-dev" in error.fix


def test_a_name_is_looked_up_on_path(fake: Callable[..., Path], only: Path) -> None:
    fake("my-python", "3.12.7")
    assert find_python("my-python").version == "3.12.7"


def test_a_shim_that_leads_nowhere_is_passed_over(fake: Callable[..., Path], script: Script, only: Path) -> None:
    script("python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    fake("python3", "3.12.7")

    assert find_python().version == "3.12.7"


def test_a_python_of_another_version_or_without_headers_is_passed_over(
    fake: Callable[..., Path], tmp_path: Path, only: Path
) -> None:
    fake("python3.12", "3.12.3", headers=False)
    fake("python3", "3.11.2")
    versions = tmp_path / "pyenv" / "versions" / "3.12.8" / "bin"
    versions.mkdir(parents=True)
    fake("in-pyenv", "3.12.8").rename(versions / "python3.12")

    assert find_python().version == "3.12.8"


def test_conda_is_looked_at_last(
    fake: Callable[..., Path], tmp_path: Path, only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "conda" / "bin"
    folder.mkdir(parents=True)
    fake("in-conda", "3.12.2").rename(folder / "python3.12")
    monkeypatch.setenv("CONDA_PREFIX", str(folder.parent))

    assert find_python().version == "3.12.2"


def test_a_named_patch_release_is_taken_at_its_word(fake: Callable[..., Path], tmp_path: Path, only: Path) -> None:
    fake("python3.12", "3.12.3")

    assert find_python("3.12").version == "3.12.3"
    assert find_python("3.12.3").version == "3.12.3"
    assert error_of("3.12.9").code == "AW301"


def test_no_python_at_all_names_the_ways_to_get_one(only: Path) -> None:
    error = error_of()

    assert error.code == "AW301"
    for way in ("pyenv install 3.12", "conda", "apt install", "--python"):
        assert way in error.fix


def test_c4_a_stray_pythonpath_does_not_steer_the_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken over')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))

    assert find_python(sys.executable).version == platform.python_version()


@given(st.lists(st.integers(0, 99), min_size=1, max_size=3).filter(lambda parts: parts[:2] != [3, 12]))
def test_no_other_version_number_is_ever_accepted(parts: list[int]) -> None:
    assert error_of(".".join(map(str, parts))).code == "AW302"


def test_bootstrap_says_the_same_when_there_is_no_python(root: Path, tmp_path: Path) -> None:
    """The script runs before the tool exists; its words are the catalogue's (test_errors)."""
    (tmp_path / "bin").mkdir()
    for name in ("sh", "dirname", "cat", "sed"):
        (tmp_path / "bin" / name).symlink_to(
            next(p for p in (Path("/bin") / name, Path("/usr/bin") / name) if p.exists())
        )
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path)}

    run = subprocess.run([root / "bootstrap", "true"], env=environment, capture_output=True, text=True)

    assert run.returncode == Exit.UNFIT
    assert run.stderr.startswith("AW301: ")
    for part in ("found:", "needed:", "why:", "fix:"):
        assert part in run.stderr
    assert os.fspath(root) not in run.stdout
