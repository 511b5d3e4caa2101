"""Runs Python with an AOT pack where nothing else could make a kernel, and notes every program that is started."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from archwright.environment import Environment
from archwright.simulate import simulation


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
