"""Running other programs: one place that captures output, names the failing command and shields the environment."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["STRAY", "CommandFailed", "clean_environment", "run", "stray_variables"]

#: Variables that change what a compiler or linker does. They never reach a build (case C4).
# fmt: off
STRAY = (
    "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDACXX", "CUDAHOSTCXX", "CUDAARCHS", "CUDAFLAGS",
    "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "NVCC_THREADS", "TORCH_CUDA_ARCH_LIST", "CC",
    "CXX", "CPP", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED", "CPATH", "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_RUN_PATH", "COMPILER_PATH",
    "GCC_EXEC_PREFIX", "CMAKE_PREFIX_PATH", "CMAKE_ARGS", "CMAKE_GENERATOR", "CMAKE_TOOLCHAIN_FILE",
    "CMAKE_BUILD_PARALLEL_LEVEL", "SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE", "MAX_JOBS", "MAKEFLAGS",
    "PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX", "VIRTUAL_ENV", "CONDA_BUILD_SYSROOT", "NCCL_DIR",
    "EP_NCCL_ROOT_DIR", "EP_NUM_TOPK_IDX_BITS", "DG_JIT_CACHE_DIR", "EP_JIT_CACHE_DIR", "ASCEND_NPU_ARCH",
    "ASC_DIR", "ASC_ROOT",
)
# fmt: on


class CommandFailed(Exception):
    """A program that ended with a non-zero status; `output` has its last words."""

    def __init__(self, command: Sequence[str], returncode: int, output: str) -> None:
        super().__init__(f"{shlex.join(command)} ended with status {returncode}")
        self.command = tuple(command)
        self.returncode = returncode
        self.output = output


def stray_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of `environ` that could change a build's output, and that builds therefore do not see.

    MAX_JOBS is not among them: no compiler sees it, but the plan honours it.
    """
    return {name: environ[name] for name in STRAY if environ.get(name) and name != "MAX_JOBS"}


def clean_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environ` without the variables that change what compilers, linkers or Python do."""
    return {name: value for name, value in environ.items() if name not in STRAY}


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> str:
    """Run `command` and return what it printed (stdout and stderr together). Raises `CommandFailed`."""
    words = [str(word) for word in command]
    result = subprocess.run(
        words,
        env=dict(env) if env is not None else None,
        cwd=cwd,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode != 0:
        raise CommandFailed(words, result.returncode, result.stdout)
    return result.stdout
