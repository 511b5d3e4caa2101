"""What an AOT pack does when it is activated (csrc/aot/activation.py), in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

VERSION_TEXT = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.2, V13.2.86\n"
ENTRY = "deepjit/cache/gemm.0123/kernel.cubin"


class Pack:
    """A pack with one made-up kernel in a folder on Python's path, and the library that it fits."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.place = folder, folder / "archwright_aot_tiny"
        (self.place / "toolkit" / "bin").mkdir(parents=True)
        (self.place / "__init__.py").write_bytes((root / "csrc" / "aot" / "activation.py").read_bytes())
        nvcc = self.place / "toolkit" / "bin" / "nvcc"
        text = (root / "csrc" / "aot" / "nvcc.in").read_text().replace("@VERSION_TEXT@", VERSION_TEXT.rstrip())
        nvcc.write_text(text.replace("@COUNT@", "1").replace("@COMMAND@", "archwright aot sm100"))
        nvcc.chmod(0o755)
        cubin = self.place / "root" / ENTRY
        cubin.parent.mkdir(parents=True)
        cubin.write_bytes(b"kernel")
        self.manifest: dict[str, Any] = {
            "distribution": "archwright-aot-tiny",
            "version": "1.0",
            "jit": "DG",
            "libraries": {"tiny": "1.0"},
            "optional": {},
            "nvcc": "13.2.86",
            "nvcc_version_text": VERSION_TEXT,
            "command": "archwright aot sm100",
            "kernels": [{}],
            "files": {ENTRY: hashlib.sha256(b"kernel").hexdigest()},
        }
        self.write()
        self.library("1.0+cu132.sm100")

    def write(self) -> None:
        (self.place / "manifest.json").write_text(json.dumps(self.manifest))

    def library(self, version: str) -> None:
        info = self.folder / "tiny.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Activate as torch does, and print the variables that upstream reads."""
        code = "import archwright_aot_tiny as p, os; p.autoload(); print({k: v for k, v in os.environ.items()})"
        base = {"PATH": "/nonexistent", "HOME": "/home/user", "PYTHONPATH": str(self.folder)}
        return subprocess.run(
            [sys.executable, "-S", "-c", code], env=base | variables, capture_output=True, text=True, check=False
        )

    def environment(self, **variables: str) -> dict[str, str]:
        done = self.run(**variables)
        assert done.returncode == 0, done.stderr
        found: dict[str, str] = eval(done.stdout)
        return found


@pytest.fixture
def pack(tmp_path: Path, root: Path) -> Pack:
    if Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("a system-wide nvcc, where upstream would find it")
    return Pack(tmp_path, root)


@pytest.fixture
def strict(tmp_path: Path, root: Path) -> Pack:
    return Pack(tmp_path, root)


def test_without_nvcc_the_pack_stands_behind_the_users_cache(pack: Pack) -> None:
    found = pack.environment()

    assert found["DG_JIT_CACHE_DIR"] == f"/home/user/.dj:{pack.place}/root/deepjit"
    assert found["DG_JIT_NVCC_COMPILER"] == str(pack.place / "toolkit" / "bin" / "nvcc")
    assert found["CUDA_HOME"] == str(pack.place / "toolkit")


def test_strict_uses_the_pack_alone_whatever_nvcc_there_is(strict: Pack) -> None:
    found = strict.environment(ARCHWRIGHT_JIT="strict", DG_JIT_CACHE_DIR="/scratch/cache")

    assert found["DG_JIT_CACHE_DIR"] == f"/scratch/cache:{strict.place}/root/deepjit"
    assert found["DG_JIT_NVCC_COMPILER"] == str(strict.place / "toolkit" / "bin" / "nvcc")


def test_a_child_process_inherits_it_and_adds_nothing(strict: Pack) -> None:
    first = strict.environment(ARCHWRIGHT_JIT="strict")
    again = {k: v for k, v in first.items() if k.startswith(("DG_", "CUDA", "ARCHWRIGHT"))}
    assert strict.environment(**again)["DG_JIT_CACHE_DIR"] == first["DG_JIT_CACHE_DIR"]


def test_off_leaves_everything_as_it_is(strict: Pack) -> None:
    assert "DG_JIT_CACHE_DIR" not in strict.environment(ARCHWRIGHT_JIT="off")


def nvcc(folder: Path, text: str) -> str:
    path = folder / "cuda" / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
    path.chmod(0o755)
    return str(folder / "cuda")


def test_with_the_same_nvcc_misses_are_compiled(strict: Pack, tmp_path: Path) -> None:
    found = strict.environment(CUDA_HOME=nvcc(tmp_path, VERSION_TEXT))

    assert found["DG_JIT_CACHE_DIR"].endswith(f":{strict.place}/root/deepjit")
    assert "DG_JIT_NVCC_COMPILER" not in found


def test_another_nvcc_is_told_and_the_pack_is_not_used(strict: Pack, tmp_path: Path) -> None:
    done = strict.run(CUDA_HOME=nvcc(tmp_path, VERSION_TEXT.replace("13.2", "13.0")))

    assert done.returncode == 0
    assert "AW606: AOT pack does not fit" in done.stderr
    assert "release 13.0" in done.stderr
    assert "DG_JIT_CACHE_DIR" not in eval(done.stdout)


@pytest.mark.parametrize("version", ["1.1", None])
def test_another_library_is_refused_and_fatal_when_strict(strict: Pack, version: str | None) -> None:
    if version:
        strict.library(version)
    else:
        (strict.folder / "tiny.dist-info" / "METADATA").unlink()
        (strict.folder / "tiny.dist-info").rmdir()
    done = strict.run(ARCHWRIGHT_JIT="strict")

    assert done.returncode != 0
    assert "AW606" in done.stderr
    assert "tiny 1.0" in done.stderr


@pytest.mark.parametrize("damage", [b"kern", b"kernal", None])
def test_a_damaged_kernel_is_noticed(strict: Pack, damage: bytes | None) -> None:
    cubin = strict.place / "root" / ENTRY
    if damage is None:
        cubin.unlink()
    else:
        cubin.write_bytes(damage)

    assert "AW608" in (done := strict.run(ARCHWRIGHT_JIT="strict")).stderr
    assert done.returncode != 0
    assert ENTRY in done.stderr


def test_the_stand_in_says_the_recorded_version_and_names_the_kernel(strict: Pack, tmp_path: Path) -> None:
    stand_in = strict.place / "toolkit" / "bin" / "nvcc"
    source = tmp_path / "kernel.cu"
    source.write_text("auto p = reinterpret_cast<void*>(&gemm_impl<\n    24, 128,\n    64\n>);\n")

    said = subprocess.run([stand_in, "--version"], capture_output=True, text=True, check=True, env={})
    refused = subprocess.run([stand_in, source, "--cubin"], capture_output=True, text=True, check=False, env={})

    assert said.stdout == VERSION_TEXT
    assert refused.returncode == 1
    assert "AW607" in refused.stderr
    assert "&gemm_impl< 24, 128, 64 >);" in refused.stderr
    assert os.access(stand_in, os.X_OK)
