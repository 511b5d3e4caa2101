"""The script in a bundle that makes the tool from it: run for real."""

from __future__ import annotations

import importlib.resources
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.bundle import open_bundle
from archwright.errors import CATALOGUE, Exit

from . import bundles
from .bundles import SM100
from .tinywheel import tiny_wheel

pytestmark = pytest.mark.usefixtures("cache")

project = bundles.project
made = bundles.made
copied = bundles.copied


@pytest.fixture
def setup(copied: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*words: str, folder: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        base = getattr(sys, "_base_executable", sys.executable)
        variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ARCHWRIGHT_PYTHON": base} | env
        command = [copied / "setup", *words]
        return subprocess.run(command, cwd=folder or tmp_path, env=variables, capture_output=True, text=True)

    return call


def test_setup_makes_the_tool_from_the_bundle_alone(
    setup: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, copied: Path, index: Path
) -> None:
    shutil.rmtree(index)
    run = setup(PIP_INDEX_URL="http://nowhere.invalid/simple", PIP_TARGET="/nowhere", PYTHONPATH="/nowhere")

    assert run.returncode == 0, run.stderr
    tool = tmp_path / "archwright-tool" / "bin" / "archwright"
    assert run.stdout == f"next: {tool} env create sm100 --bundle {copied}\n"
    assert subprocess.run([tool], capture_output=True, text=True).stdout == "the tool 1\n"
    assert open_bundle(copied, SM100), "the bundle is as it was"

    made = (tmp_path / "archwright-tool" / "pyvenv.cfg").stat()
    assert setup().returncode == 0
    assert (tmp_path / "archwright-tool" / "pyvenv.cfg").stat() == made, "the second time there is nothing to do"


def test_setup_repairs_what_was_half_made(
    setup: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "tool" / "bin").mkdir(parents=True)
    (tmp_path / "tool" / "archwright-bundle").touch()

    assert setup("tool").returncode == 0
    assert (tmp_path / "tool" / "bin" / "archwright").is_file()


def test_setup_overwrites_nothing(
    setup: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, copied: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()

    run = setup("mine")

    assert run.returncode == Exit.USAGE
    assert run.stderr.startswith("AW109: wrong usage\n  found:  ")
    assert (tmp_path / "mine" / "file").exists()


def test_setup_does_not_write_into_the_bundle(
    setup: Callable[..., subprocess.CompletedProcess[str]], copied: Path
) -> None:
    run = setup(folder=copied)

    assert run.returncode == Exit.USAGE
    assert "inside the bundle" in run.stderr
    assert open_bundle(copied, SM100)


def test_setup_refuses_another_python(
    setup: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, script: Callable[[str, str], Path]
) -> None:
    tools = tmp_path / "only"
    tools.mkdir()
    for name in ("dirname", "uname", "sh"):
        (tools / name).symlink_to(shutil.which(name) or name)
    other = script("python3", "exit 1")
    (tools / "python3").symlink_to(other)

    run = setup(PATH=str(tools), ARCHWRIGHT_PYTHON=str(other))

    assert run.returncode == Exit.UNFIT
    assert run.stderr.startswith("AW301: no suitable Python\n")
    assert "CPython 3.12" in run.stderr
    assert not (tmp_path / "archwright-tool").exists()


def test_setup_refuses_another_processor(
    setup: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, script: Callable[[str, str], Path]
) -> None:
    script("uname", "echo riscv64")

    run = setup(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    assert run.returncode == Exit.CHECK_FAILED
    assert run.stderr.startswith("AW321: bundle is damaged or does not fit\n")
    assert "riscv64" in run.stderr


def test_setup_notices_a_tampered_wheel(
    setup: Callable[..., subprocess.CompletedProcess[str]], copied: Path, tmp_path: Path
) -> None:
    tiny_wheel(copied / "wheels", "shared", data=b"another wheel that could be installed")

    run = setup()

    assert run.returncode != 0
    assert "HASHES" in run.stderr
    assert (tmp_path / "archwright-tool" / "archwright-bundle").read_text() == ""


def test_codes_that_setup_names_are_in_the_catalogue() -> None:
    template = importlib.resources.files("archwright").joinpath("templates", "bundle_setup").read_text("utf-8")
    found = dict(re.findall(r"'(AW\d+): ([^']+)'", template))
    assert set(found) == {"AW109", "AW301", "AW321"}
    assert found == {code: CATALOGUE[code].title for code in found}
