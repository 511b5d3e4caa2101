"""Finding the Python that wheels are built for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import fail
from .process import clean_environment
from .targets import target_table

__all__ = ["Interpreter", "find_python"]

_PROBE = (
    "import json, os, sys, sysconfig, platform;"
    "include = sysconfig.get_path('include');"
    "print(json.dumps([sys.implementation.name, platform.python_version(), os.path.realpath(sys.executable),"
    " sys.base_prefix, os.path.exists(os.path.join(include, 'Python.h')),"
    " bool(sysconfig.get_config_var('Py_GIL_DISABLED')), platform.machine()]))"
)


@dataclass(frozen=True)
class Interpreter:
    """A CPython that was run and asked. `has_headers` says whether Python.h is there."""

    path: Path
    version: str
    prefix: Path
    has_headers: bool
    machine: str


def find_python(named: str | None = None) -> Interpreter:
    """The interpreter named by the user, else the first of: PATH, pyenv, the active conda environment.

    Each candidate is run, since a shim on PATH may not lead anywhere. Raises AW302 when the user named one of
    another version and AW301 when there is none.
    """
    wanted = target_table().python
    if named:
        if named.replace(".", "").isdigit():
            if not (named + ".").startswith(wanted + "."):
                raise _wrong(named, f"Python {named}", wanted)
        else:
            found = _probe(shutil.which(named) or named)
            if found is None:
                raise fail(
                    "AW301",
                    found=f"{named} does not run as a CPython",
                    needed=f"the path of a CPython {wanted}",
                    why="its headers and ABI decide what the wheels fit",
                    fix="name a working interpreter, or leave --python out: PATH, pyenv and conda are then searched",
                )
            if not (found.version + ".").startswith(wanted + "."):
                raise _wrong(named, f"{found.path}, Python {found.version}", wanted)
            return _with_headers(found, wanted)
    for candidate in _candidates(wanted):
        found = _probe(candidate)
        if found and (found.version + ".").startswith((named or wanted) + ".") and found.has_headers:
            return found
    raise fail(
        "AW301",
        found=f"no CPython {named or wanted} with headers on PATH, in pyenv or in conda",
        needed=f"CPython {wanted} and its Python.h",
        why="DeepInfer needs Python 3.12, and extension modules are built for one Python version",
        fix=f"`pyenv install {wanted}`, `conda create -n py312 python={wanted}` or `apt install python{wanted}-dev`, "
        "then name it with --python",
    )


def _wrong(named: str, found: str, wanted: str) -> Exception:
    return fail(
        "AW302",
        found=found,
        needed=f"CPython {wanted}",
        why=f"DeepInfer {'needs at least' if _older(named, wanted) else 'and its pinned packages are tested with'} "
        f"{wanted}, and the locks are for {wanted} only",
        fix=f"leave --python out, or name a CPython {wanted}",
    )


def _older(named: str, wanted: str) -> bool:
    parts = [int(p) for p in named.split(".") if p.isdigit()]
    return bool(parts) and parts[:2] < [int(p) for p in wanted.split(".")]


def _with_headers(found: Interpreter, wanted: str) -> Interpreter:
    if found.has_headers:
        return found
    raise fail(
        "AW301",
        found=f"{found.path} without Python.h",
        needed="its development headers",
        why="extension modules include Python.h",
        fix=f"`apt install python{wanted}-dev`, or use a pyenv or conda Python",
    )


def _candidates(wanted: str) -> Iterator[str]:
    yield from filter(None, (shutil.which(f"python{wanted}"), shutil.which("python3")))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in sorted(pyenv.glob(f"{wanted}*/bin/python{wanted}"), reverse=True):
        yield str(path)
    for variable in ("CONDA_PREFIX", "VIRTUAL_ENV"):
        if os.environ.get(variable):
            yield str(Path(os.environ[variable]) / "bin" / f"python{wanted}")


def _probe(path: str | Path) -> Interpreter | None:
    try:
        run = subprocess.run(
            [str(path), "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            env=clean_environment(),
        )
        name, version, executable, prefix, headers, free_threaded, machine = json.loads(run.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if name != "cpython" or free_threaded:
        return None
    return Interpreter(Path(executable), version, Path(prefix), headers, machine)
