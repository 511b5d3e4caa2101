"""Runs Python under the simulated device: its functions alone, or a pack where nothing else could make a kernel."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from archwright.environment import Environment
from archwright.simulate import run_simulated, simulation


class Used(NamedTuple):
    status: int
    said: str
    started: list[str]


def run_alone(
    environment: Environment, site: Path, tmp_path: Path, *words: str, nccl: bool = False, **variables: str
) -> Used:
    """Run Python on a simulated B200 with nothing on PATH, an empty home, and the packages in `site`.

    `variables` are added to its environment, where `ARCHWRIGHT_JIT` is `strict` unless they say otherwise.
    """
    home, trace, strace = tmp_path / "home", tmp_path / "trace", shutil.which("strace")
    home.mkdir()
    if strace is None:
        pytest.skip("strace is not installed: compiler processes could only be assumed")
    alone = {"HOME": str(home), "PATH": "/nonexistent", "PYTHONPATH": str(site), "ARCHWRIGHT_JIT": "strict"}
    command = [strace, "-f", "-qq", "-e", "trace=execve", "-o", str(trace)]
    command += [str(environment.runtime / "bin" / "python"), "-B", *words]
    done = subprocess.run(
        command,
        env=alone | simulation("b200", environment, nccl=nccl) | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    started = [line.split('"')[1] for line in trace.read_text().splitlines() if "execve(" in line and "= 0" in line]
    return Used(done.returncode, done.stdout + done.stderr, started)


def call_stand_ins(
    environment: Environment, tmp_path: Path, code: str, device: str = "b200", count: int = 1
) -> list[object]:
    """What `code` put into the list `out`: the stand-ins' functions, called without torch unless `code` imports it."""
    script, result = tmp_path / "s.py", tmp_path / "out.json"
    script.write_text(f"import json\n{code}\nopen({str(result)!r}, 'w').write(json.dumps(out))\n")
    command = [str(environment.runtime / "bin" / "python"), str(script)]
    assert run_simulated(device, environment, command, tmp_path / "log", count).status == 0
    values: list[object] = json.loads(result.read_text())
    return values
