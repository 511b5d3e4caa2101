"""Lowering kernels for an NPU: upstream's Python runs up to the compiler, on a machine without NPU and without CANN.

csrc/aot/ascend_lowering.py is what it runs under. What comes of it is a *source pack*: Ascend C with the compiler's
options, which a machine with CANN compiles.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from .cann import Cann
from .components import components
from .devices import Device
from .sources import fetch

if TYPE_CHECKING:
    from .backend import Request
    from .environment import Environment

__all__ = ["compile_pack", "lowering_environment", "lowering_headers", "lowering_library"]


def lowering_library(request: Request) -> tuple[Path, str]:
    """The library whose Python chooses the kernels, and what identifies it: its verified source tree.

    A wheel of it would need CANN to be linked; its extension module is not needed to lower.
    """
    assert request.component.pack is not None
    source = fetch(components()[request.component.pack.library], offline=bool(os.environ.get("ARCHWRIGHT_OFFLINE")))
    return source.path, source.path.name


def lowering_environment(folder: Path, request: Request, device: Device, library: Path) -> dict[str, str]:
    """The variables of a process that lowers kernels for `device`: nothing of the user's, and no compiler."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {
        "PATH": os.defpath,
        "HOME": str(home),
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(library),
        "PYTHONHASHSEED": "0",
        "PYTHONPYCACHEPREFIX": str(folder / "pycache"),
        "CC": str(request.environment.cc),  # TileLang compiles host code of its own
        "CXX": str(request.environment.cxx),
        "OMP_NUM_THREADS": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "ARCHWRIGHT_LOWER": json.dumps(device.figures, sort_keys=True),
    }


def lowering_headers(request: Request) -> list[str]:
    """The headers that a lowered source may include: TileLang's own, as it names them."""
    root = request.environment.runtime_site / "tilelang" / "src"
    return sorted(str(path.relative_to(root)) for path in (root / "tl_templates" / "ascend").rglob("*.h"))


def compile_pack(wheel: Path, environment: Environment, cann: Cann) -> int:
    """Compile the kernels of a source pack with `cann` into TileLang's cache. Returns the exit status of its command.

    It is the command that a user of the wheel runs: `python -m` its package. Not verified here: no CANN.
    """
    assert cann.bisheng is not None
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch)  # one that we built and inspected
        variables = {
            **os.environ,
            "PATH": os.pathsep.join([str(cann.bisheng.parent), os.environ.get("PATH", os.defpath)]),
            "ASCEND_HOME_PATH": str(cann.root),
            "PYTHONPATH": scratch,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        python = environment.runtime / "bin" / "python"
        package = wheel.name.partition("-")[0]
        return subprocess.run([python, "-m", package], env=variables, check=False).returncode
