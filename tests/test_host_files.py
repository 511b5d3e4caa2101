"""Upstream's host files for Ascend, compiled for real against the headers in torch_npu's wheel; marked `wheels`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from archwright.components import components, select_cells
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
