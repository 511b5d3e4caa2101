"""noxfile.py: it runs itself, explains a missing backend, and makes its environment from the lock once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from archwright.interpreter import find_python
from archwright.targets import target_table


def nox(root: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nox", "-f", str(root / "noxfile.py"), *words]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def test_sessions_and_tags(root: Path) -> None:
    lines = re.findall(r"^([*-]) (\S+)(?: \[(.*)\])? -> (.+)$", nox(root, "-l").stdout, re.M)

    names = {name for _, name, _, _ in lines}
    assert {name for mark, name, _, _ in lines if mark == "*"} == {"lint", "types", "tests", "wheels"}
    assert {"repro", "lock", "docs", "release"} <= names
    for target in target_table().targets:
        assert {f"{name}({target})" for name in ("build", "inspect", "aot")} <= names
        assert {name for _, name, tags, _ in lines if target in tags} == {
            f"{name}({target})" for name in ("build", "inspect", "aot")
        }


@pytest.mark.parametrize("words", [("-db", "mamba"), ("--default-venv-backend", "mamba")])
def test_a_missing_backend_is_explained(words: tuple[str, ...], root: Path) -> None:
    run = nox(root, *words, "-s", "lint", PATH=str(Path(sys.executable).parent))

    assert run.returncode != 0
    assert "needs the program `mamba`" in run.stderr
    assert "virtualenv" in run.stderr
    assert "Traceback" not in run.stderr


def test_without_nox_it_runs_itself_through_bootstrap(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "noxfile.py", tmp_path)
    bootstrap = tmp_path / "bootstrap"
    bootstrap.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    bootstrap.chmod(0o755)

    plain = [str(find_python().path), "-I", str(tmp_path / "noxfile.py"), "-s", "build(sm100)"]
    run = subprocess.run(plain, capture_output=True, text=True, check=True)

    assert run.stdout == "nox|-s|build(sm100)|"


def test_what_does_not_exist_yet_says_with_which_issue_it_comes(root: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for session, issue in (("release", "issue 8"),):
        run = nox(root, "-db", "none", "-s", session, PATH=path)
        assert run.returncode == 1
        assert issue in run.stderr + run.stdout


@pytest.mark.wheels
def test_a_session_makes_its_environment_from_the_lock_and_uses_it_again(root: Path, tmp_path: Path) -> None:
    """With uv, in a copy: the whole lock is installed, so it is not among the quick tests."""
    for name in ("noxfile.py", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(root / name, tmp_path)
    for name in ("python", "envs", "cmake", "csrc"):
        shutil.copytree(root / name, tmp_path / name, symlinks=True)

    first = nox(tmp_path, "-db", "uv", "-s", "inspect(sm90)")
    again = nox(tmp_path, "-db", "uv", "-s", "inspect(sm90)")

    assert "no wheels in dist/sm90" in first.stderr + first.stdout
    assert "--require-hashes" in first.stderr + first.stdout
    assert "--require-hashes" not in again.stderr + again.stdout
    assert (tmp_path / ".nox" / "inspect-sm90" / "bin" / "archwright").is_file()

    with (tmp_path / "envs" / "dev.lock").open("a") as file:
        file.write("# another digest\n")
    other = nox(tmp_path, "-db", "uv", "-s", "inspect(sm90)")
    assert "--require-hashes" in other.stderr + other.stdout
