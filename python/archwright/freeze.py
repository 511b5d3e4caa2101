"""The freeze record: one file that names everything a result depends on, and a digest that stands for it.

Its content is the same as long as nothing in it changes: no date, no host name, no folder. Evidence refers to its
digest, so that a result can be told apart from one of another driver, compiler or lock.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import __version__
from .cann import find_cann
from .components import Component, components
from .environment import Environment
from .errors import fail
from .lockfile import read_lock
from .project import project_root, replace_text, write_errors
from .sources import patch_digests, sha256_of
from .targets import target_table

__all__ = [
    "check_freeze",
    "differences",
    "digest_of",
    "freeze",
    "freeze_for",
    "freeze_path",
    "read_freeze",
    "write_freeze",
]


def freeze(environment: Environment, model: str | None = None) -> dict[str, Any]:
    """What is frozen for `environment` on this machine, with its digest under `digest`.

    `model` identifies the model as the user names it, such as a repository and revision: it is written down, not
    looked up. What is not there is null: no driver, no CANN. Raises AW334 and AW337 when the environment names a CANN
    that is not there, or there are several and it names none.
    """
    target = target_table().targets[environment.target]
    runtime = read_lock(project_root() / "envs" / target.name / "runtime.lock")
    record: dict[str, Any] = {
        "schema": 1,
        "target": target.name,
        "tier": str(target.tier),
        "model": model,
        "engine": _source(components()["engine"]),
        "components": {name: _source(c) for name, c in components().items() if name != "engine"},
        "cuda": {"nvcc": environment.nvcc, "release": environment.toolkit_release} if environment.nvcc else None,
        "cann": _cann() if target.is_ascend else None,
        "driver": _driver(target.vendor),
        "compiler": {
            "gcc": environment.gcc,
            "origin": environment.compiler_origin,
            "sha256": sha256_of(environment.cxx.resolve()),
            "packages": environment.compiler_packages,
        },
        "libc": " ".join(platform.libc_ver()),
        "python": {
            "version": environment.python,
            "sha256": sha256_of((environment.toolchain / "bin/python").resolve()),
        },
        "torch": {"version": environment.torch, "files": runtime["torch"].hashes},
        "nccl": {"version": environment.nccl, "files": runtime["nvidia-nccl-cu13"].hashes}
        if environment.nccl
        else None,
        "locks": environment.locks,
        "environment": environment.digest,
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "processor": platform.machine(),
        "archwright": __version__,
    }
    record = json.loads(json.dumps(record))  # tuples become lists, as they are when it is read
    return {**record, "digest": digest_of(record)}


def digest_of(record: Mapping[str, Any]) -> str:
    """sha256 of the record as compact JSON with sorted keys, without `digest` itself."""
    content = {key: value for key, value in record.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_freeze(record: Mapping[str, Any], path: Path) -> Path:
    """Write the record, whole or not at all."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(record, indent=1) + "\n")
    return path


def read_freeze(path: Path) -> dict[str, Any]:
    """Read a record. Raises AW319 when it is damaged or was edited: its digest does not fit its content."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        wrong = "" if record["digest"] == digest_of(record) else "its digest is not that of its content"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        raise fail(
            "AW319",
            found=f"{path}: {wrong}",
            needed="a freeze record as `archwright env freeze` writes it",
            why="evidence refers to its digest",
            fix="restore the file, or freeze again: `archwright env freeze TARGET`",
        )
    return record


def differences(frozen: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What is no longer as it was frozen, one line each. The model is the user's word and is not compared."""
    ignored = {"digest", "model"}
    return tuple(
        f"{'.'.join(path)}: frozen {_short(old)}, now {_short(new)}"
        for path, old, new in _walk(frozen, now, ())
        if path[0] not in ignored
    )


def check_freeze(path: Path, environment: Environment) -> dict[str, Any]:
    """The record at `path`, when this machine and its environment still are what it says. Raises AW314 and AW319."""
    frozen = read_freeze(path)
    changed = differences(frozen, freeze(environment))
    if changed:
        raise fail(
            "AW314",
            found=f"{len(changed)} facts are not as frozen in {path}: {changed[0]}",
            needed="the environment and the machine that were frozen",
            why="results of two environments cannot be compared, nor stand for each other",
            fix="go back to what was frozen (`git checkout` the locks, the former driver), or freeze again under "
            "another name and make the evidence anew",
            detail="\n".join(changed),
        )
    return frozen


def freeze_for(environment: Environment, wheels: Path, news: Callable[[str], None]) -> dict[str, Any]:
    """The record that evidence about wheels in the folder `wheels` refers to.

    The model is the one that `wheels`/freeze.json names. What differs from that file is said, and not hidden.
    """
    frozen = read_freeze(path) if (path := wheels / "freeze.json").is_file() else {}
    record = freeze(environment, frozen.get("model"))
    if frozen and (changed := differences(frozen, record)):
        news(f"not as frozen in {path}: {'; '.join(changed)}")
    return record


def freeze_path(wheels: Path, record: Mapping[str, Any]) -> Path:
    """Where the record is kept that evidence about wheels in the folder `wheels` refers to."""
    return wheels / "evidence" / f"freeze-{record['digest'][:12]}.json"


def _walk(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from _walk(old.get(key), new.get(key), (*path, key))
    elif old != new:
        yield path, old, new


def _short(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _source(component: Component) -> dict[str, Any]:
    return {
        "distribution": component.origin,
        "version": component.version,
        "sha256": component.sha256,
        "patches": patch_digests(component),
    }


def _driver(vendor: str) -> str | None:
    """The release of the loaded kernel driver, from the file in which it says so."""
    sources = {
        "nvidia": (Path("/proc/driver/nvidia/version"), r"\b(\d+\.\d+(?:\.\d+)?)\b"),
        "huawei": (Path("/usr/local/Ascend/driver/version.info"), r"(?mi)^version=(\S+)"),
    }
    path, pattern = sources[vendor]
    match = re.search(pattern, path.read_text(errors="replace")) if path.is_file() else None
    return match[1] if match else None


def _cann() -> dict[str, str | None] | None:
    """The CANN that builds take. Raises AW334 and AW337: what they would not take is not frozen either."""
    found = find_cann()
    if found is None:
        return None
    record = sha256_of(found.record) if found.record else None
    return {"version": found.version or "unknown", "processor": found.processor, "sha256": record}
