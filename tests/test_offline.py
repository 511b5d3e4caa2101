"""The real thing, without a network: a bundle is exported, and deep_ep built from it with every cache empty (case C2).

Slow (minutes), and takes some 15 GB while it runs; marked `wheels`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archwright.bundle import SUMS
from archwright.interpreter import find_python

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(3000)]

CELL = ("sm100", "deep_ep")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that is gone afterwards: pytest would keep the last three."""
    path = tmp_path_factory.mktemp("offline")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def bundle(room: Path) -> Path:
    """Made with the user's own cache, and the network where that lacks something."""
    archwright("env", "export", *CELL, "--out", room / "bundle")
    return room / "bundle"


def archwright(*words: str | Path) -> Any:
    """What the tool of this tree answers, with the user's own cache."""
    command = [sys.executable, "-m", "archwright", *map(str, words), "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.fixture
def cut_off(room: Path, no_network: list[str]) -> tuple[list[str], dict[str, str], Path]:
    """A prefix of commands, variables and a working folder: no network, an empty home, and this Python only."""
    home = room / "home"
    home.mkdir(exist_ok=True)
    own = str(Path(sys.prefix) / "bin")
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != own)
    env = {"PATH": path, "HOME": str(home), "ARCHWRIGHT_PYTHON": str(find_python().path), "PIP_CONFIG_FILE": os.devnull}
    return no_network, env, home


def test_the_bundle_is_what_its_sums_say(bundle: Path) -> None:
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", SUMS], cwd=bundle, check=True)
    assert sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) < 6e9


def test_c2_deep_ep_is_built_from_the_bundle_alone(
    bundle: Path, cut_off: tuple[list[str], dict[str, str], Path]
) -> None:
    """Nothing but the bundle and the machine's Python and compiler; the wheel is the one of a build with a network."""
    prefix, env, home = cut_off

    def run(*words: str | Path) -> str:
        command = [*prefix, *map(str, words)]
        return subprocess.run(command, env=env, cwd=home, stdout=subprocess.PIPE, text=True, check=True).stdout

    interfaces = run("cat", "/proc/self/net/dev").splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"], "the network is cut off"
    tool = home / "archwright-tool" / "bin" / "archwright"
    assert f"next: {tool} env create sm100" in run(bundle / "setup")
    python = ("--python", env["ARCHWRIGHT_PYTHON"])

    made = json.loads(run(tool, "env", "create", CELL[0], "--bundle", bundle, *python, "--json"))
    assert made["path"].startswith(str(home))
    built = json.loads(run(tool, "build", *CELL, "--bundle", bundle, *python, "--out", home / "dist", "--json"))

    (wheel,) = built["wheels"]
    (usual,) = archwright("build", *CELL, "--out", home / "usual")["wheels"]
    assert Path(wheel["path"]).is_relative_to(home / "dist")
    assert wheel["sha256"] == usual["sha256"], "byte by byte"
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", SUMS], cwd=bundle, check=True)
