"""What a wheel's binaries need of the system: the platform tag and the newest symbol version of each family.

auditwheel decides when a wheel is made (`read_abi`). Its import takes longer than a whole inspection, so an inspection
asks auditwheel's own policy table directly (`smallest_policy`); the tests compare the two.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.util
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EXTERNAL", "Abi", "newest", "numbers", "read_abi", "smallest_policy"]

#: Libraries that stay outside the wheel: torch's, CUDA's, the driver's, NCCL's and CANN's.
EXTERNAL = frozenset(
    [
        "libtorch*.so",
        "libc10*.so",
        "libcuda.so.1",
        "libcudart.so.13",
        "libnvrtc*.so.*",
        "libcublas*.so.*",
        "libnccl.so.2",
        "libtorch_npu.so",
        "libascend*.so",
        "libhccl.so",
    ]
)
_FAMILIES = ("GLIBC", "GLIBCXX", "CXXABI")


@dataclass(frozen=True)
class Abi:
    """What a wheel's binaries need: the platform tag, and the newest symbol version of each family."""

    platform: str
    needs: dict[str, str]


def read_abi(wheel: Path) -> Abi:
    """Let auditwheel say what the binaries of `wheel` need. Libraries in `EXTERNAL` are left out by name."""
    from auditwheel.architecture import Architecture  # slow to import, and not needed for the metadata alone
    from auditwheel.libc import Libc
    from auditwheel.wheel_abi import analyze_wheel_abi

    architecture = Architecture(os.uname().machine)
    found = analyze_wheel_abi(Libc.GLIBC, architecture, wheel, EXTERNAL, disable_isa_ext_check=True, allow_graft=False)
    return Abi(found.overall_policy.name, newest(v for versions in found.versioned_symbols.values() for v in versions))


def newest(versions: Iterable[str]) -> dict[str, str]:
    """The newest of each family that the target table has a floor for, among names like `GLIBC_2.34`."""
    needs: dict[str, str] = {}
    for version in versions:
        family, _, number = version.partition("_")
        if family in _FAMILIES and number[:1].isdigit():
            needs[family] = max(needs.get(family, "0"), number, key=numbers)
    return dict(sorted(needs.items()))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def smallest_policy(needed: Iterable[str], versions: Iterable[str], processor: str) -> str:
    """The oldest platform tag that binaries fit which need these libraries and versions; `linux_...` for none."""
    libraries = {
        name
        for name in needed
        if not name.startswith("ld-linux") and not any(fnmatch.fnmatch(name, pattern) for pattern in EXTERNAL)
    }
    wanted: dict[str, set[str]] = {}
    for version in versions:
        family, _, number = version.partition("_")
        wanted.setdefault(family, set()).add(number)
    for policy in _policies():
        known: dict[str, list[str]] = policy["symbol_versions"].get(processor, {})
        # a family that no policy knows is a library's own (libcudart.so.13)
        if libraries <= set(policy["lib_whitelist"]) and all(
            numbers_ <= set(known[family]) for family, numbers_ in wanted.items() if family in known
        ):
            return f"{policy['name']}_{processor}"
    return f"linux_{processor}"


@functools.cache
def _policies() -> list[dict[str, Any]]:
    """auditwheel's policies that promise something, the oldest system first."""
    spec = importlib.util.find_spec("auditwheel")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("auditwheel")
    path = Path(spec.origin).parent / "policy" / "manylinux-policy.json"
    policies = [policy for policy in json.loads(path.read_text(encoding="utf-8")) if policy["priority"]]
    return sorted(policies, key=lambda policy: -int(policy["priority"]))
