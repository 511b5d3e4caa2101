"""The toolkit view: makes CUDA's packages look like a CUDA toolkit to CMake and to upstream.

The packages have `lib/` instead of `lib64/`, versioned libraries only and no driver stub. The view is a folder of
symlinks beside the prefix; nothing in the prefix itself is changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .errors import fail
from .process import run

__all__ = ["ToolkitParts", "check_nvcc_floor", "make_toolkit_view", "nvcc_release", "toolkit_releases"]


@dataclass(frozen=True)
class ToolkitParts:
    """Where packages put the parts of a CUDA toolkit. Absolute folders."""

    bin: Path
    include: Path
    nvvm: Path
    lib: Path

    @classmethod
    def below(cls, cuda: Path) -> ToolkitParts:
        """The parts in the layout of NVIDIA's Python packages: `cuda` is `.../nvidia/cu13`."""
        return cls(cuda / "bin", cuda / "include", cuda / "nvvm", cuda / "lib")


def make_toolkit_view(parts: ToolkitParts, view: Path, cc: Path) -> None:
    """Create the folder `view` of links that looks like an installed toolkit.

    `lib64` gets an unversioned name for each library, and `lib64/stubs/libcuda.so` an empty library with the
    driver's soname, for `-lcuda` at link time on machines without a driver (case B5).
    """
    lib64 = view / "lib64"
    (lib64 / "stubs").mkdir(parents=True)
    for name in ("bin", "include", "nvvm"):
        (view / name).symlink_to(getattr(parts, name))
    (view / "lib").symlink_to("lib64")  # nvcc's profile of the packages says lib, CMake says lib64
    for library in sorted(path for path in parts.lib.iterdir() if path.name != "stubs"):
        (lib64 / library.name).symlink_to(library)
        plain = re.sub(r"\.so\.[\d.]+$", ".so", library.name)
        if plain != library.name and not (lib64 / plain).exists():
            (lib64 / plain).symlink_to(library)
    stub = lib64 / "stubs" / "libcuda.so"
    run([cc, "-shared", "-nostdlib", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1", "-o", stub])
    (lib64 / "stubs" / "libcuda.so.1").symlink_to("libcuda.so")


def nvcc_release(nvcc: Path) -> str:
    """The full version of `nvcc`, such as 13.2.86."""
    match = re.search(r"V(\d+\.\d+\.\d+)", run([nvcc, "--version"]))
    return match[1] if match else "unknown"


def toolkit_releases(view: Path) -> dict[str, str]:
    """Release (`major.minor`) that each part of the toolkit says it is. One value when nothing is mixed.

    Raises AW311 when the parts are of different releases (trap 1: CCCL stops deep inside a compile).
    """
    releases = {"nvcc": ".".join(nvcc_release(view / "bin" / "nvcc").split(".")[:2])}
    for part, header, macro in (
        ("runtime headers", "cuda_runtime_api.h", "CUDART_VERSION"),
        ("driver headers", "cuda.h", "CUDA_VERSION"),
    ):
        match = re.search(rf"#define\s+{macro}\s+(\d+)", (view / "include" / header).read_text(errors="replace"))
        number = int(match[1]) if match else 0
        releases[part] = f"{number // 1000}.{number % 1000 // 10}"
    if len(set(releases.values())) > 1:
        raise fail(
            "AW311",
            found=", ".join(f"{part} {release}" for part, release in releases.items()),
            needed="one CUDA release throughout",
            why='CCCL refuses with "CUDA compiler and CUDA toolkit headers are incompatible"',
            fix="recreate the environment: `archwright env create`; toolchain and runtime must not share a prefix",
        )
    return releases


def check_nvcc_floor(found: str, floors: dict[str, str]) -> None:
    """Raise AW305 unless nvcc `found` reaches every floor; `floors` maps who needs it to the release.

    Runs before the first compile, so that it is not a `compute_100a` error deep inside one (case A1).
    """
    have = tuple(int(p) for p in found.split("."))
    for who, floor in floors.items():
        if have < tuple(int(p) for p in floor.split(".")):
            raise fail(
                "AW305",
                found=f"nvcc {found}",
                needed=f"nvcc {floor} or newer for {who}",
                why="an older nvcc does not know the architecture or lacks instructions that the kernels use",
                fix="lock a newer cuda-toolkit in envs/<target>/toolchain.in and run `archwright env create` again",
            )
