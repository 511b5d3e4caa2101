"""Fixtures of the tests of bundles: a checkout of tiny things, and bundles made of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright import bundle as bundle_module
from archwright import exporting
from archwright.bundle import Bundle
from archwright.compiler import HostCompiler
from archwright.components import Component
from archwright.exporting import export_bundle
from archwright.targets import target_table

from .tinywheel import tiny_wheel, write_lock

__all__ = ["PYPROJECT", "SM100", "copied", "export", "made", "project"]

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
