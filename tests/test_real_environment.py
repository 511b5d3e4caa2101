"""The real sm100 environment, compared with its lock and loaded: in a cache of its own, which may be damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from archwright.project import cache_dir

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for a cache of its own. The provisioned compiler is shared: it is not what is tested here."""
    cache = tmp_path_factory.mktemp("cache")
    shared = cache_dir() / "compilers"
    shared.mkdir(exist_ok=True)
    (cache / "compilers").symlink_to(shared)
    return {**os.environ, "ARCHWRIGHT_CACHE": str(cache)}


def env(apart: dict[str, str], *words: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "archwright", "env", *words, "--json"]
    run = subprocess.run(command, env=apart, stdout=subprocess.PIPE, text=True, check=False)
    return run.returncode, json.loads(run.stdout)


@pytest.fixture(scope="module")
def made(apart: dict[str, str]) -> dict[str, Any]:
    status, environment = env(apart, "create", "sm100")
    assert status == 0, environment
    return environment


def test_b3_a_new_environment_is_as_locked_and_torch_and_deep_ep_share_one_nccl(
    apart: dict[str, str], made: dict[str, Any]
) -> None:
    status, checked = env(apart, "check", "sm100")

    assert status == 0, checked
    assert checked["clean"]
    assert {"torch", "tilelang", "tile_kernels", "transformers"} <= set(checked["together"]["imported"])
    assert checked["together"]["nccl"] == made["nccl"]
    assert Path(checked["together"]["nccl_path"]).is_relative_to(made["runtime"])


def test_one_changed_file_is_named(apart: dict[str, str], made: dict[str, Any]) -> None:
    header = next(Path(made["toolchain"]).rglob("cuda_bf16.h"))
    text = header.read_text()
    header.unlink()  # it is a hard link into uv's cache: that copy stays well
    header.write_text(text + "// edited\n")

    status, checked = env(apart, "check", "sm100", "--no-imports")

    assert status == 1
    (drift,) = checked["drifts"]
    assert drift["kind"] == "modified file"
    assert drift["path"].endswith("cuda_bf16.h")
    assert drift["package"] == "nvidia-cuda-runtime"

    assert env(apart, "create", "sm100", "--again")[0] == 0  # which verifies every file
    assert header.read_text() == text


def test_ascend950_has_an_environment_too_without_nvcc(apart: dict[str, str]) -> None:
    status, environment = env(apart, "create", "ascend950")

    assert status == 0, environment
    assert environment["nvcc"] == ""
    status, checked = env(apart, "check", "ascend950")
    assert status == 0, checked
    assert "torch" in checked["together"]["imported"]
    assert "CANN" in checked["together"]["not_verified"]["torch_npu"]


def test_a_freeze_record_of_the_real_environment(apart: dict[str, str], made: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "freeze.json"

    status, record = env(apart, "freeze", "sm100", "--model", "a-model@1", "--out", str(path))

    assert status == 0
    assert record == json.loads(path.read_text())
    assert record["cuda"]["nvcc"] == made["nvcc"]
    assert record["torch"]["version"] == made["torch"]
    assert env(apart, "freeze", "sm100", "--check", "--out", str(path))[0] == 0
