"""Fixtures of the tests of bundles: a checkout of tiny things, and bundles made of it."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright import bundle as bundle_module
from archwright import exporting
from archwright.bundle import Bundle
from archwright.compiler import HostCompiler
from archwright.components import Component
from archwright.exporting import export_bundle
from archwright.sources import sha256_of
from archwright.targets import target_table

__all__ = ["PYPROJECT", "SM100", "copied", "export", "made", "project", "tiny_wheel", "write_lock"]

SM100 = target_table().targets["sm100"]
PYPROJECT = """\
[build-system]
requires = ["scikit-build-core"]
build-backend = "scikit_build_core.build"
[project]
name = "archwright"
version = "0.1.0"
[project.scripts]
archwright = "archwright:run"
[tool.scikit-build]
wheel.cmake = false
wheel.packages = ["python/archwright"]
wheel.reproducible = true
"""


def tiny_wheel(folder: Path, name: str, version: str = "1.0", tag: str = "py3-none-any", data: bytes = b"") -> Path:
    """A wheel of one module that pip and uv install."""
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}.py": "value = 1\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": f"{name}.py,,\n{name}.bin,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member), text)
        archive.writestr(zipfile.ZipInfo(f"{name}.bin"), data)
    return path


def write_lock(path: Path, *wheels: Path, marker: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for wheel in wheels:
        name, version, *_ = wheel.name.split("-")
        lines.append(f"{name}=={version}{marker} \\\n    --hash=sha256:{sha256_of(wheel)}\n    # via a test\n")
    path.write_text("# a lock\n" + "".join(lines))


@pytest.fixture
def project(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, tiny: Component) -> Path:
    """A checkout with three locks, whose wheels lie in the index, a tool of one module and one component."""
    root = tmp_path / "project"
    shared = tiny_wheel(index, "shared")
    write_lock(root / "envs" / "tool.lock", shared)
    write_lock(root / "envs" / "sm100" / "toolchain.lock", shared, tiny_wheel(index, "nvcc", "13.2"))
    write_lock(root / "envs" / "sm100" / "runtime.lock", tiny_wheel(index, "torch", "2.13"))
    (root / "pyproject.toml").write_text(PYPROJECT)
    package = root / "python" / "archwright"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def run():\n    import shared\n    print('the tool', shared.value)\n")
    for module in (bundle_module, exporting):
        monkeypatch.setattr(module, "project_root", lambda: root)
    monkeypatch.setattr(bundle_module, "components", lambda: {tiny.name: tiny})
    own = HostCompiler(Path("/usr/bin/g++"), Path("/usr/bin/gcc"), "14.2.0", "PATH", True, {})
    monkeypatch.setattr(exporting, "choose_compiler", lambda offline: own)
    return root


@pytest.fixture
def export(project: Path, tiny: Component, tmp_path: Path) -> Callable[..., Bundle]:
    def make(name: str = "bundle", **options: object) -> Bundle:
        return export_bundle(SM100, [tiny], tmp_path / name, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test that needs a bundle keeps it for the others: what goes into one is the same each time."""
    return tmp_path_factory.mktemp("made") / "bundle"


@pytest.fixture
def copied(project: Path, tiny: Component, made: Path, tmp_path: Path) -> Path:
    """A good bundle to be broken. It shares no file with any cache."""
    if not made.is_dir():
        shutil.copytree(export_bundle(SM100, [tiny], tmp_path / "original").folder, made)
    return Path(shutil.copytree(made, tmp_path / "bundle"))
