"""Upstream's own setup.py files, prepared to be run under the locked environment.

The trees are fresh, verified and unpatched. What is changed in the copies, for the comparison only: one gencode instead
of two and a stub for the test module that the sdist lacks (flash_mla), and the locked CCCL instead of /usr/local's
(deep_ep).
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from archwright.archives import extract_sdist
from archwright.components import Component
from archwright.environment import Environment
from archwright.process import clean_environment
from archwright.project import cache_dir
from archwright.sources import fetch, sha256_of

__all__ = ["COMMAND", "Upstream", "prepare", "wheel_of"]

COMMAND = ("setup.py", "bdist_wheel")

_KERNELKIT = '''"""Stands in for the module that upstream's sdist lacks; for the comparison only."""


def check_kernel_reg_spill_in_artifact(*arguments, **options):
    return []
'''


@dataclass(frozen=True)
class Upstream:
    """Where one component's setup.py lies, and the command and environment to run it with."""

    component: str
    folder: Path
    command: tuple[str, ...]
    env: dict[str, str]


def prepare(
    chosen: tuple[Component, ...],
    gencodes: tuple[str, ...],
    environment: Environment,
    work: Path,
    max_jobs: int | None,
    *,
    dry: bool = False,
) -> list[Upstream]:
    """Make the Python and the trees in `work`; with `dry`, only say what they would be."""
    python = work / "upstream-python"
    env = _environment(environment, python, max_jobs)
    if not dry:
        _make_python(python, environment)
    result = []
    for component in chosen:
        folder = work / "upstream" / component.root
        if not dry:
            _make_tree(component, folder, gencodes, environment)
        result.append(Upstream(component.name, folder, (str(python / "bin" / "python"), *COMMAND), env))
    return result


def _make_python(python: Path, environment: Environment) -> None:
    """A Python that sees the runtime half (torch, setuptools) and the toolchain's `wheel`, and nothing else."""
    subprocess.run([environment.runtime / "bin" / "python", "-m", "venv", "--without-pip", python], check=True)
    site = next((python / "lib").glob("python3.*")) / "site-packages"
    (site / "runtime.pth").write_text(f"{environment.runtime_site}\n", encoding="utf-8")
    toolchain = next((environment.toolchain / "lib").glob("python3.*")) / "site-packages"
    for found in (toolchain / "wheel", *toolchain.glob("wheel-*.dist-info")):
        (site / found.name).symlink_to(found)


def _make_tree(component: Component, folder: Path, gencodes: tuple[str, ...], environment: Environment) -> None:
    fetch(component)
    archive = cache_dir() / "archives" / f"{component.sha256}.tar.gz"
    if not archive.is_file() or sha256_of(archive) != component.sha256:
        raise SystemExit(f"{archive} is missing or damaged; remove {component.root}-* beside it and fetch again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    extract_sdist(archive, component.root, folder)
    if component.name == "flash_mla":
        _edit(folder / "setup.py", 'CUDA_ARCHS = ["sm_100a", "sm_103a"]', f"CUDA_ARCHS = {list(gencodes)!r}")
        (folder / "tests" / "__init__.py").touch()
        (folder / "tests" / "kernelkit.py").write_text(_KERNELKIT, encoding="utf-8")
    elif component.name == "deep_ep":
        _edit(folder / "setup.py", "/usr/local/cuda/include/cccl", str(environment.toolkit / "include" / "cccl"))


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise SystemExit(f"{path}: expected {old!r} once; the comparison does not fit this upstream version")
    path.write_text(text.replace(old, new), encoding="utf-8")


def _environment(environment: Environment, python: Path, max_jobs: int | None) -> dict[str, str]:
    """The same nvcc, g++, torch, NCCL and Ninja as ours; anything that would ask for a device is answered."""
    path = [python / "bin", environment.toolkit / "bin", environment.toolchain / "bin"]  # Ninja is in the last
    env = clean_environment() | {
        "PATH": os.pathsep.join([*map(str, path), os.environ.get("PATH", os.defpath)]),
        "VIRTUAL_ENV": str(python),  # engine's setup.py demands one
        "CUDA_HOME": str(environment.toolkit),
        "CXX": str(environment.cxx),
        "CC": str(environment.cc),
        # upstream looks for these two under <toolkit>/targets/<platform>, which the packaged toolkit has not
        "CPLUS_INCLUDE_PATH": str(environment.toolkit / "include" / "cccl"),
        "LIBRARY_PATH": str(environment.toolkit / "lib64" / "stubs"),
        "EP_NCCL_ROOT_DIR": str(environment.nccl_root),
        "TORCH_CUDA_ARCH_LIST": "10.0",
        "FLASH_MLA_BUILD_TARGET_PLATFORM": "CUDA",
        "DEEPINFER_ACCELERATOR": "nvidia",
        "DG_FORCE_BUILD": "1",  # never download a wheel from a guessed address
        "DG_USE_LOCAL_VERSION": "0",
        "TORCH_NO_COMPILER_WRAPPER": "1",  # torch puts ccache in front of every compiler that it finds it for
        "CCACHE_DISABLE": "1",
        "LC_ALL": "C.UTF-8",
    }
    for name in ("DG_SKIP_CUDA_BUILD", "FLASH_MLA_SKIP_CUDA_BUILD", "NCCL_DIR"):
        env.pop(name, None)
    if max_jobs:
        env["MAX_JOBS"] = str(max_jobs)
    return env


def wheel_of(upstream: Upstream) -> Path:
    """The wheel that a finished run left."""
    found = list((upstream.folder / "dist").glob("*.whl"))
    if len(found) != 1:
        raise SystemExit(f"{upstream.folder}: {len(found)} wheels instead of one")
    return found[0]
