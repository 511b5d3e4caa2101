"""Import guard: explains what does not fit before the dynamic loader or CUDA fails with a riddle.

Archwright puts this file into each of its wheels, with the facts of the build in `_archwright.json`. It needs nothing
but the standard library, starts no CUDA context (devices are asked through NVML) and imports no torch.
`ARCHWRIGHT_GUARD=off` in the environment switches it off.
"""

import ctypes
import importlib.abc
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import warnings

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_archwright.json"), encoding="utf-8") as _file:
    FACTS = json.load(_file)


class ArchwrightImportError(ImportError):
    """An import that cannot work here; the message has a code, what was found, needed, why, and the fix."""


def _text(judgement, code, title, found, needed, why, fix):
    return (
        f"{FACTS['distribution']} {FACTS['version']} {judgement}\n"
        f"{code}: {title}\n  found:  {found}\n  needed: {needed}\n  why:    {why}\n  fix:    {fix}"
    )


def _stop(*words):
    raise ArchwrightImportError(_text("cannot be used here", *words), name=FACTS["package"])


def check():
    """Check Python, processor, torch, NCCL, the driver and the devices against what the wheel was built for."""
    if os.environ.get("ARCHWRIGHT_GUARD", "").lower() == "off":
        return
    _check_python()
    if FACTS["torch"]:
        _check_torch()
    if FACTS["nccl"]:
        _check_nccl()
    if FACTS["driver"]:
        _check_driver()
    _check_devices()
    if FACTS["pack"]:
        _check_compiler(**FACTS["pack"])


def check_before(module):
    """Run `check` when `module` is about to be imported, not before: its package is usable without it."""

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name == module:
                check()

    sys.meta_path.insert(0, Finder())


def _check_python():
    here = (platform.python_version().rpartition(".")[0], platform.machine())
    if here != (FACTS["python"], FACTS["processor"]):
        _stop(
            "AW605",
            "another Python or processor than the wheel's",
            f"Python {here[0]} on {here[1]}",
            f"Python {FACTS['python']} on {FACTS['processor']}",
            "extension modules are built for one of each",
            f"use a CPython {FACTS['python']}",
        )


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version):
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.partition("+")[0].split("."))


def _check_torch():
    found = _version("torch")
    if found is None or _numbers(found)[:2] != _numbers(FACTS["torch"])[:2]:
        minor = ".".join(FACTS["torch"].split(".")[:2])
        _stop(
            "AW602",
            "another torch than the wheel was built against",
            f"torch {found}" if found else "no torch",
            f"torch {minor}.* (built against {FACTS['torch']})",
            "torch's C++ ABI changes between minor versions: symbols would be undefined, or worse",
            f"pip install 'torch=={FACTS['torch']}', or build the wheel again for this torch",
        )


def _check_nccl():
    found = _version("nvidia-nccl-cu13")
    if found is not None and _numbers(found) >= _numbers(FACTS["nccl"]):
        return
    if os.environ.get("EP_NCCL_ROOT_DIR") or os.environ.get("NCCL_DIR"):
        return  # the user's own NCCL; upstream compares it with the one that torch loaded
    _stop(
        "AW603",
        "NCCL is too old",
        f"nvidia-nccl-cu13 {found}" if found else "no nvidia-nccl-cu13",
        f"nvidia-nccl-cu13 {FACTS['nccl']} or newer",
        f"torch {FACTS['torch']} pins an older one; DeepEP calls functions that it does not have",
        f"pip install --no-deps 'nvidia-nccl-cu13>={FACTS['nccl']}' (torch works with it: same libnccl.so.2)",
    )


def _library(name):
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _check_driver():
    if _library("libcuda.so.1") is None:
        _stop(
            "AW601",
            "no NVIDIA driver",
            "libcuda.so.1 cannot be loaded",
            f"the NVIDIA driver and a {_devices()}",
            "this module calls the driver directly; the driver cannot be installed by a wheel",
            "install the driver, or in a container run it with the NVIDIA runtime (`--gpus all`)",
        )


def _devices():
    return " / ".join(name for names in FACTS["devices"].values() for name in names)


def _capabilities():
    """Compute capability of each device, from NVML; an empty list when it cannot be asked."""
    nvml = _library("libnvidia-ml.so.1")
    if nvml is None or getattr(nvml, "nvmlInit_v2", lambda: 1)() != 0:
        return []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        result = []
        for index in range(count.value):
            device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            if (
                nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
                and nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)) == 0
            ):
                result.append(f"{major.value}.{minor.value}")
        return result
    except AttributeError:
        return []  # a stand-in for the library that lacks a function
    finally:
        getattr(nvml, "nvmlShutdown", int)()


def _check_devices():
    found = _capabilities()
    if found and not set(found) & set(FACTS["devices"]):
        _stop(
            "AW604",
            "device is not of the wheel's architecture",
            "compute capability " + ", ".join(sorted(set(found))),
            f"compute capability {', '.join(FACTS['devices'])} ({_devices()})",
            "this wheel's kernels are for that architecture only: launches would fail with 'no kernel image'",
            "install the wheel for this device's target, where there is one (`archwright targets`)",
        )


def _check_compiler(distribution, variables):
    """Kernels come from an AOT pack or from nvcc at run time: with neither, the first call would fail."""
    if _version(distribution):
        return
    strict = os.environ.get("ARCHWRIGHT_JIT", "").lower() == "strict"
    nvcc = _find_nvcc(variables)
    if nvcc and not strict:
        return
    places = f"no nvcc in {', '.join([*variables, 'CUDA_HOME'])} or on PATH"
    words = (
        "AW609",
        "neither an AOT pack nor a compiler",
        f"no {distribution} in this environment, and {'ARCHWRIGHT_JIT=strict is set' if nvcc else places}",
        "kernels compiled ahead of time, or nvcc to compile them when they are first called",
        "this library compiles most of its kernels at run time",
        f"install the wheel of {distribution} that fits {FACTS['distribution']} {FACTS['version']}",
    )
    if strict:
        _stop(*words)
    warnings.warn(_text("may not work here", *words), RuntimeWarning, stacklevel=2)


def _find_nvcc(variables):
    """The first of upstream's places that has an nvcc: its own variables, the toolkit's, PATH."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    named = [os.environ.get(name) for name in variables] + [os.path.join(home, "bin", "nvcc") for home in homes if home]
    return next((path for path in [*named, shutil.which("nvcc")] if path and os.access(path, os.X_OK)), None)
