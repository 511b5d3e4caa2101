"""A real environment for tests: uv installs tiny wheels into two virtual environments."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from uv import find_uv_bin

from archwright.contents import Drift, check_contents, record_contents

__all__ = [
    "HALVES",
    "INIT",
    "RECORD",
    "SITE",
    "VERSION",
    "Made",
    "made",
    "record_hash",
    "rewrite_record",
    "run_uv",
    "template",
    "write_package",
]

HALVES = ("toolchain", "runtime")
VERSION = platform.python_version()
#: Paths in the runtime half: where packages are, a module of alpha, and the list of alpha's files.
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
INIT = f"{SITE}/alpha/__init__.py"
RECORD = f"{SITE}/alpha-1.0.dist-info/RECORD"


def record_hash(data: bytes, algorithm: str = "sha256") -> str:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{algorithm}={digest}"


def write_package(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> Path:
    """Write a wheel. A file below `*.data/scripts/` is installed into bin/."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.title()}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{member},{record_hash(data)},{len(data)}" for member, data in members.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))
    return path


def run_uv(*words: str | Path, cache: Path) -> None:
    """Run uv with a cache of its own, whatever the developer's shell or files say."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    env |= {"UV_CACHE_DIR": str(cache), "UV_LINK_MODE": "hardlink", "UV_PYTHON_DOWNLOADS": "never"}
    subprocess.run([find_uv_bin(), *words, "--quiet", "--no-config"], env=env, check=True)


@dataclass(frozen=True)
class Made:
    """An environment, its locks, and the wheels that it was made of."""

    folder: Path
    locks: dict[str, Path]
    wheels: Path

    @property
    def site(self) -> Path:
        return self.folder / "runtime" / SITE

    def uv(self, *words: str | Path, half: str = "runtime", cache: Path | None = None) -> None:
        where = ("--offline", "--no-index", "--find-links", self.wheels) if words[0] == "install" else ()
        run_uv("pip", *words, "--python", self.folder / half, *where, cache=cache or self.wheels / "cache")

    def check(self) -> tuple[Drift, ...]:
        return check_contents(self.folder, self.locks)

    def record(self) -> None:
        record_contents(self.folder, HALVES)

    def only(self) -> Drift:
        (drift,) = self.check()
        return drift


PACKAGES = {
    ("alpha", "1.0"): {
        "alpha/__init__.py": b"value = 1\n",
        "alpha/data/table.txt": b"1 2 3\n",
        "alpha-1.0.data/scripts/alpha-tool": b"#!/bin/sh\necho alpha\n",
    },
    ("alpha", "1.1"): {"alpha/__init__.py": b"value = 2\n"},
    ("beta", "2.0"): {"beta.py": b"", "nested/beta/one.py": b"one = 1\n", "nested/beta/two.py": b"two = 2\n"},
    ("gamma", "3.0"): {"gamma.py": b"gamma = 3\n", "gamma.pth": b"import gamma\n"},
}


def make_environment(root: Path) -> Made:
    """Two virtual environments with the packages that their locks name."""
    (root / "wheels").mkdir()
    (root / "locks").mkdir()
    wheels = {key: write_package(root / "wheels", *key, files) for key, files in PACKAGES.items()}
    digests = {key: hashlib.sha256(wheel.read_bytes()).hexdigest() for key, wheel in wheels.items()}
    locks = {half: root / "locks" / f"{half}.lock" for half in HALVES}
    for half, keys in {"toolchain": [("beta", "2.0")], "runtime": [("alpha", "1.0"), ("beta", "2.0")]}.items():
        locks[half].write_text("".join(f"{n}=={v} --hash=sha256:{digests[n, v]}\n" for n, v in keys))
    made = Made(root / "env", locks, root / "wheels")
    for half in HALVES:
        run_uv("venv", "--python", sys.executable, made.folder / half, cache=made.wheels / "cache")
        made.uv("install", "--require-hashes", "--no-deps", "-r", locks[half], half=half)
    return made


def copy_environment(template: Made, folder: Path) -> Made:
    """A copy in `folder`, with a toolkit view, a record of its contents, and an env.json."""
    target = folder / "sm100-0123456789ab"
    shutil.copytree(template.folder, target, symlinks=True)
    copy = Made(target, template.locks, template.wheels)
    view = target / "cuda"
    (view / "lib64" / "stubs").mkdir(parents=True)
    (view / "lib").symlink_to("lib64")
    (view / "include").symlink_to(target / "toolchain" / SITE / "nested")
    (view / "lib64" / "stubs" / "libcuda.so").write_bytes(b"stub")
    copy.record()
    (target / "env.json").write_text(json.dumps({"python": VERSION}))
    return copy


def rewrite_record(made: Made, row: bytes) -> Path:
    """Add `row` to alpha's RECORD, and record the environment as if it had been made so."""
    record = made.folder / "runtime" / RECORD
    record.write_bytes(row + b"\n" + record.read_bytes())
    made.record()
    return record


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_environment(tmp_path_factory.mktemp("template"))


@pytest.fixture
def made(template: Made, tmp_path: Path) -> Made:
    """A complete environment of this test alone."""
    return copy_environment(template, tmp_path)
