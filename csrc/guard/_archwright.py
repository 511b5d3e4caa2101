"""Import guard: explains what does not fit before the dynamic loader or CUDA fails with a riddle.

Archwright puts this file into each of its wheels, with the facts of the build in `_archwright.json`. It needs nothing
but the standard library, starts no CUDA context (devices are asked through NVML) and imports no torch.
`ARCHWRIGHT_GUARD=off` in the environment switches it off.
"""

import ctypes
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import os
import platform
import shlex
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
    """Check Python, processor, torch, what it needs of CUDA or CANN, and the devices against what the wheel is for."""
    if os.environ.get("ARCHWRIGHT_GUARD", "").lower() == "off":
        return
    _check_python()
    if FACTS["torch"]:
        _check_torch()
    if FACTS["nccl"]:
        _check_nccl()
    if FACTS["driver"]:
        _check_driver()
    if FACTS["torch_npu"]:
        _check_torch_npu()
    if FACTS["cann"]:
        _check_cann(**FACTS["cann"])
    else:
        _check_devices()
    if FACTS["pack"]:
        _check_compiler(**FACTS["pack"])


def check_before(module):
    """Run `check` when `module` is about to be loaded, not before: its package is usable without it.

    For Ascend also in front of torch_npu: `import torch` loads it unasked, and fails with a riddle where it cannot.
    """

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name != module and not (name == "torch_npu" and FACTS["cann"]):
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader.create_module = _checked(spec.loader.create_module)
            return spec  # to look where a module is does not load it, and is no reason to stop anybody

    sys.meta_path.insert(0, Finder())


def _checked(create_module):
    def create(spec):
        check()
        return create_module(spec)

    return create


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


def _check_torch_npu():
    found = _version("torch-npu")
    if found is None or _numbers(found)[:2] != _numbers(FACTS["torch_npu"])[:2]:
        minor = ".".join(FACTS["torch_npu"].split(".")[:2])
        _stop(
            "AW610",
            "another torch_npu than the wheel was built against",
            f"torch_npu {found}" if found else "no torch_npu",
            f"torch_npu {minor}.* (built against {FACTS['torch_npu']})",
            "the wheel is linked to it, and it fits one minor version of torch only",
            f"pip install 'torch-npu=={FACTS['torch_npu']}', or build the wheel again for this one",
        )


def _check_cann(release, libraries, variables, roots, device):
    """CANN's libraries, in the order in which torch_npu needs them, and the file by which upstream finds an NPU."""
    for name in libraries:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            state, fix = _cann_here(variables, roots, release)
            _stop(
                "AW611",
                "CANN's libraries cannot be loaded",
                f"{error}; {state}",
                f"CANN {release} or newer, with its set_env.sh sourced in this shell, and the driver's libraries",
                "this module and torch_npu are linked to them; they are Huawei's, and no wheel can bring them",
                fix,
            )
    if not os.path.exists(device):
        _stop(
            "AW612",
            "no Ascend driver",
            f"{device} is not there",
            f"the driver of Huawei's NPU and an {_devices()}",
            "by this file upstream decides between Ascend and CUDA: without it, it would look for CUDA modules",
            f"install the driver, or in a container pass the devices: `--device {device} --device /dev/davinci0 ...`",
        )


def _cann_here(variables, roots, release):
    """What the environment says of CANN, and the line that mends it."""
    usual = _sourcing([os.path.expanduser(root) for root in roots])
    usual = usual or f"install CANN {release}, then `source <its root>/set_env.sh`"
    name = next((name for name in variables if os.environ.get(name)), None)
    if name is None:
        return f"neither {' nor '.join(variables)} is set: CANN's environment is not sourced", usual
    root = os.environ[name]
    if not os.path.isdir(root):
        return f"{name} names {root}, which is not a folder", f"`unset {name}`, then {usual}"
    real, folders = os.path.realpath(root), os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    own = next((path for path in folders if path and os.path.realpath(path).startswith(real + os.sep)), None)
    if own is None:
        again = _sourcing([root]) or f"{root} has no set_env.sh: {usual}"
        return f"{name} names {root}, and LD_LIBRARY_PATH has nothing of it", again
    return (
        f"{name} names {root}, and LD_LIBRARY_PATH has {own}",
        "install what is missing again: libascend_hal.so and other libraries of the driver with the driver (in a "
        "container mount /usr/local/Ascend/driver), all others with CANN",
    )


def _sourcing(roots):
    """The line that activates the first CANN among `roots`; its script is in its root, or beside it (CANN 8)."""
    scripts = [
        os.path.join(folder, "set_env.sh")
        for root in roots
        for folder in (root, os.path.dirname(os.path.abspath(root)))
    ]
    return next((f"`source {shlex.quote(script)}`" for script in scripts if os.path.isfile(script)), None)


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
