"""Whether the locked runtime loads together: everything that DeepInfer asks for, in one process, with one NCCL.

torch pins an older NCCL than DeepEP needs (case B3). The lock overrules that pin; this shows which library a process
that imports torch really has, by asking it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from .components import components
from .environment import Environment
from .errors import fail
from .lockfile import read_lock
from .process import CommandFailed, clean_environment, run

__all__ = ["Together", "load_together"]

#: Runs in the runtime's Python. Names come in as arguments, one JSON line goes out after whatever the imports print.
_PROBE = """\
import ctypes, importlib, importlib.metadata, re, sys
def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()
wanted, imported, failed = set(sys.argv[1:]), [], {}
for module, owners in sorted(importlib.metadata.packages_distributions().items(), key=lambda m: (m[0] != "torch", m)):
    if module.isidentifier() and not module.startswith("_") and wanted & {plain(owner) for owner in owners}:
        try:
            importlib.import_module(module)
            imported.append(module)
        except BaseException as error:
            failed[module] = f"{type(error).__name__}: {error}"
loaded = sorted({line.split()[-1] for line in open("/proc/self/maps") if "/libnccl.so" in line})
number = ctypes.c_int()
if loaded:
    ctypes.CDLL(loaded[0]).ncclGetVersion(ctypes.byref(number))
import json
print("\\n" + json.dumps({"imported": imported, "failed": failed, "loaded": loaded, "number": number.value}))
"""


#: Libraries that are no packages, and what brings them: a module that lacks one cannot be judged here.
_OUTSIDE = {"libhccl.so": "CANN", "libascendcl.so": "CANN"}


@dataclass(frozen=True)
class Together:
    """`nccl` is the release that the process really loaded, from `nccl_path`; both empty when nothing loads one.

    `not_verified` maps a module that could not be loaded on this machine to the reason.
    """

    imported: tuple[str, ...]
    nccl: str
    nccl_path: str
    not_verified: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def load_together(environment: Environment, lock: Path) -> Together:
    """Import everything that `lock`'s input asks for in one process of the runtime's Python.

    Raises AW332 when an import fails, when more than one NCCL is loaded, when it is another than the locked one, or
    when it is older than a component of the target needs. No device is needed.
    """
    asked = [package.name for package in read_lock(lock).values() if any(" -r " in f" {line}" for line in package.why)]
    env = clean_environment() | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONNOUSERSITE": "1"}
    try:
        output = run([environment.runtime / "bin" / "python", "-I", "-c", _PROBE, *asked], env=env, timeout=600)
        answer = json.loads(output.rstrip().rpartition("\n")[2])
    except (CommandFailed, OSError, ValueError) as error:
        raise _apart(
            environment, "the process that imports them ended", getattr(error, "output", str(error))
        ) from error
    outside = {
        module: f"needs {product} ({library}), which is not here"
        for module, error in answer["failed"].items()
        for library, product in _OUTSIDE.items()
        if f"{library}: cannot open" in error
    }
    failed = {module: error for module, error in answer["failed"].items() if module not in outside}
    if failed:
        detail = "\n".join(f"import {module}: {error}" for module, error in failed.items())
        raise _apart(environment, f"{', '.join(failed)} cannot be imported", detail)
    loaded, number = answer["loaded"], answer["number"]
    nccl = f"{number // 10000}.{number // 100 % 100}.{number % 100}" if loaded else ""
    if wrong := _wrong_nccl(environment, loaded, nccl):
        raise _apart(environment, wrong, "\n".join(loaded))
    return Together(tuple(answer["imported"]), nccl, loaded[0] if loaded else "", outside)


def _wrong_nccl(environment: Environment, loaded: list[str], nccl: str) -> str:
    if len(loaded) > 1:
        return f"{len(loaded)} NCCL libraries in one process"
    if loaded and not Path(loaded[0]).is_relative_to(environment.runtime.resolve()):
        return f"NCCL from {loaded[0]}, outside the environment"
    if loaded and Version(nccl).release != Version(environment.nccl).release[:3]:
        return f"NCCL {nccl} is loaded, {environment.nccl} is locked"
    for name, floor in _floors(environment.target):
        if loaded and Version(nccl) < Version(floor):
            return f"NCCL {nccl} is loaded, {name} needs {floor}"
    return ""


def _floors(target: str) -> Iterable[tuple[str, str]]:
    """Who needs which NCCL, of the components that the target builds or will build."""
    for component in components().values():
        if component.nccl and any(cell.target == target and not cell.reason for cell in component.cells):
            yield component.name, component.nccl


def _apart(environment: Environment, found: str, detail: str) -> Exception:
    return fail(
        "AW332",
        found=f"{found} ({environment.runtime})",
        needed="one process that imports all of the runtime, with one NCCL that is new enough for every component",
        why="libraries that resolve together on paper can still exclude each other when they are loaded (case B3)",
        fix=f"`archwright env check {environment.target}` tells whether files changed; if none did, the lock needs "
        f"another pin in envs/{environment.target}/runtime.overrides",
        detail=detail[-3000:],
    )
