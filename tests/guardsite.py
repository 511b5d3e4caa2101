"""Packages with the import guard, in processes where nothing else is on Python's path."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from archwright.targets import target_table

__all__ = ["FACTS", "NVML", "Site", "assert_stopped", "site"]

#: Those of a wheel for SM100.
FACTS: dict[str, Any] = {
    "distribution": "deepinfer-ep",
    "package": "pkg",
    "version": "2.5.0+cu132.sm100",
    "target": "sm100",
    "tier": "official",
    "python": ".".join(platform.python_version_tuple()[:2]),
    "processor": platform.machine(),
    "torch": "2.13.0",
    "torch_npu": None,
    "cann": None,
    "nccl": "2.32.3",
    "driver": False,
    "devices": {c: list(names) for c, names in target_table().targets["sm100"].devices.items()},
    "pack": None,
    "archwright": "0.1.0",
}

#: A stand-in for NVML with the devices that FAKE_DEVICES names by compute capability.
NVML = r"""
#include <stdlib.h>
#include <string.h>
static const char *device(unsigned index) {
    const char *at = getenv("FAKE_DEVICES");
    for (; at && *at && index; at++) if (*at == ',') index--;
    return at && *at ? at : 0;
}
int nvmlInit_v2(void) { return getenv("FAKE_BROKEN") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    for (*count = 0; device(*count); ++*count) ;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)device(index); return !*handle; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    *major = atoi(handle);
    *minor = atoi(strchr(handle, '.') + 1);
    return 0;
}
"""


class Site:
    """A folder on Python's path with a guarded package, and made-up distributions and libraries beside it."""

    def __init__(self, folder: Path, guard: Path) -> None:
        self.folder = folder
        self.libraries = folder / "lib"
        self.libraries.mkdir()
        (folder / "pkg").mkdir()
        shutil.copy(guard, folder / "pkg" / "_archwright.py")
        self.package("from . import _archwright\n_archwright.check()\nimport torch\n")
        self.facts()
        self.install("torch", "2.13.0")
        (folder / "torch.py").write_text("")
        self.install("nvidia-nccl-cu13", "2.32.3")

    def package(self, text: str) -> None:
        (self.folder / "pkg" / "__init__.py").write_text(text)

    def facts(self, **changed: Any) -> None:
        (self.folder / "pkg" / "_archwright.json").write_text(json.dumps({**FACTS, **changed}))

    def install(self, name: str, version: str | None) -> None:
        for old in self.folder.glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(old)
        if version is not None:
            info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def library(self, name: str, source: str, gcc: str) -> None:
        target = self.libraries / name
        subprocess.run([gcc, "-shared", "-fPIC", "-x", "c", "-", "-o", target], input=source, text=True, check=True)

    def run(self, code: str = "import pkg", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `code` where nothing but this folder is on Python's path."""
        env = {
            "PATH": os.defpath,
            "PYTHONPATH": str(self.folder),
            "LD_LIBRARY_PATH": str(self.libraries),
            **environment,
        }
        return subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def site(tmp_path: Path, root: Path) -> Site:
    return Site(tmp_path, root / "csrc" / "guard" / "_archwright.py")


def assert_stopped(run: subprocess.CompletedProcess[str], code: str, *words: str) -> None:
    assert run.returncode == 1
    assert f"\n{code}: " in run.stderr
    assert "ArchwrightImportError" in run.stderr
    assert "deepinfer-ep 2.5.0+cu132.sm100 cannot be used here" in run.stderr
    for part in ("found:  ", "needed: ", "why:    ", "fix:    ", *words):
        assert part in run.stderr
