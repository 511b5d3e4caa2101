"""Upstream's host files for Ascend, compiled for real against the headers in torch_npu's wheel; marked `wheels`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from archwright.components import components, select_cells
from archwright.environment import create_environment
from archwright.gates import Verdict
from archwright.inspection import inspect_wheel
from archwright.project import project_root
from archwright.targets import target_table

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(3400)]


def test_all_host_files_of_ascend_compile_and_no_wheel_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "archwright", "build", "ascend950", "--host-only", "--json", "--out", tmp_path]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)

    assert run.returncode == 0, run.stdout
    result = json.loads(run.stdout)
    chosen = select_cells(target_table().targets["ascend950"], (), os.uname().machine, host_only=True)
    build = project_root() / "build" / "ascend950"
    for component in chosen:
        made = sorted(path.name for path in (build / component.name / "host").rglob("*.cpp.o"))
        assert made == sorted(f"{Path(unit.path).name}.o" for unit in component.units)
    assert result["host_files"] == sum(len(component.units) for component in chosen) == 19
    assert result["wheels"] == []
    assert result["device_compile"] == "not verified here"
    assert not list(tmp_path.glob("*.whl"))
    assert {c.name for c in chosen} < components().keys()


def test_the_engines_wheel_is_made_and_g3_says_what_is_missing_when_it_is_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "archwright", "build", "ascend950", "engine", "--json", "--out", tmp_path]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)

    assert run.returncode == 0, run.stdout
    result = json.loads(run.stdout)
    assert result["device_compile"] == "not verified here"
    (wheel,) = (Path(built["path"]) for built in result["wheels"])
    assert "+npu213.ascend950-" in wheel.name
    found = inspect_wheel(wheel)
    assert "libtorch_npu.so" in found.subject.dynamic.needed
    assert found.verdict is not Verdict.FAILED

    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    python = create_environment(target_table().targets["ascend950"]).runtime / "bin" / "python"
    env = {"PATH": "/usr/bin", "PYTHONPATH": str(tmp_path / "site")}
    imported = subprocess.run(
        [python, "-c", "import deepinfer._C"], env=env, capture_output=True, text=True, check=False
    )
    assert imported.returncode != 0
    assert "AW611" in imported.stderr and "set_env.sh" in imported.stderr
