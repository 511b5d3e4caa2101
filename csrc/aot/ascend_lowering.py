"""Lets TileLang's and DeepInfer's own Python choose and lower Ascend kernels on a machine without NPU and without CANN.

`worker.py` uses it when ARCHWRIGHT_LOWER names the device's figures as JSON. Upstream's code runs unmodified up to the
point where TileLang would call CANN's compiler: there the Ascend C source and the compiler's options are written down.
What is stood in for, before anything of upstream is imported:

/dev/davinci_manager   its presence is how DeepInfer and tile-kernels know that they run on Ascend
torch.npu, torch_npu   the device's figures; everything else of them answers nothing, as does libascendcl.so
tensors on the device  tensors of the CPU that say they are on `cuda:0`, as upstream writes it for both vendors
deepinfer._C.engine    classes of arguments, which hold what they are given (the extension itself needs CANN)

Kernels are not run: calling one gives fresh tensors for its outputs. Nothing here can make a binary.
"""

import ast
import ctypes
import hashlib
import importlib.util
import json
import os
import pathlib
import sys
import types

MARK = "/dev/davinci_manager"
#: What TileLang is given in place of a binary; it is never loaded nor kept.
NOT_COMPILED = b"Archwright: lowered only, never compiled"


class _Nothing:
    """Any attribute, callable, returns itself."""

    def __call__(self, *_arguments, **_named):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __setattr__(self, name, value):
        pass


def _module(name, **attributes):
    module = types.ModuleType(name, "Stand-in by Archwright: see ascend_lowering.py.")
    module.__getattr__ = _Nothing().__getattr__
    vars(module).update(attributes)
    sys.modules[name] = module
    return module


def install(figures):
    """Make this process one that believes to be on the device with these figures. Once, before upstream's imports."""
    _show_device_file()
    import torch

    known = types.SimpleNamespace(
        **figures, cube_core_num=figures["cube_cores"], vector_core_num=2 * figures["cube_cores"]
    )
    stream = type("Stream", (), {"npu_stream": 0})
    npu = _module(
        "torch.npu",
        get_device_properties=lambda *_: known,
        current_device=lambda: 0,
        device_count=lambda: 1,
        is_available=lambda: True,
        synchronize=lambda *_: None,
        current_stream=lambda *_: stream(),
        Stream=stream,
        Event=type("Event", (), {}),
    )
    torch.npu = npu
    for name in ("get_device_properties", "current_device", "device_count", "synchronize", "current_stream"):
        setattr(torch.cuda, name, getattr(npu, name))  # as torch_npu.contrib.transfer_to_npu does
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # platform.py: TORCH_NPU_DEVICE_CAPABILITY
    known.major, known.minor = torch.cuda.get_device_capability()
    contrib = _module("torch_npu.contrib", transfer_to_npu=None)
    _module("torch_npu", contrib=contrib, npu=_module("torch_npu.npu"))
    load = ctypes.CDLL
    ctypes.CDLL = lambda name, *rest, **named: _Nothing() if name == "libascendcl.so" else load(name, *rest, **named)
    _device_mode(torch).__enter__()
    os.environ["TILELANG_DEFAULT_TARGET"] = "ascend"


def _show_device_file():
    exists, path_exists = os.path.exists, pathlib.Path.exists
    os.path.exists = lambda path: path == MARK or exists(path)
    pathlib.Path.exists = lambda self, **named: str(self) == MARK or path_exists(self, **named)


def _device_mode(torch):
    from torch.overrides import TorchFunctionMode

    cpu, shown = torch.device("cpu"), torch.device("cuda", 0)

    def real(value):
        named = isinstance(value, torch.device | str) and str(value).partition(":")[0] in ("cuda", "npu")
        return cpu if named else value

    class OnDevice(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            if function == torch.Tensor.device.__get__:  # each look at it makes another object
                return shown
            if function == torch.Tensor.is_cuda.__get__:
                return True
            if function == torch.Tensor.pin_memory:
                return arguments[0]
            named = {key: real(value) for key, value in (named or {}).items() if key != "pin_memory"}
            return function(*map(real, arguments), **named)

    return OnDevice()


def engine_arguments():
    """Stand in for `deepinfer._C.engine`: each class holds the arguments that its stub in the package names."""
    engine = types.ModuleType("deepinfer._C.engine", "Stand-in by Archwright: see ascend_lowering.py.")
    spec = importlib.util.find_spec("deepinfer")
    stub = pathlib.Path(spec.submodule_search_locations[0], "_C", "engine.pyi") if spec else None
    for node in ast.parse(stub.read_text()).body if stub else ():
        if isinstance(node, ast.ClassDef):
            makers = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            names = [argument.arg for argument in makers[0].args.args[1:]] if makers else []
            setattr(engine, node.name, _holder(node.name, names))
        elif isinstance(node, ast.FunctionDef):
            setattr(engine, node.name, _Nothing())
    extension = types.ModuleType("deepinfer._C")
    extension.engine = engine
    sys.modules |= {"deepinfer._C": extension, "deepinfer._C.engine": engine}


def _holder(name, names):
    def __init__(self, *values, **named):
        vars(self).update(zip(names, values, strict=False), **named)

    return type(name, (), {"__init__": __init__})


class Sources:
    """What TileLang lowered, in a folder: `<digest>/kernel.asc` and `<digest>/build.json`; entries are named by both.

    The digest covers the source, the architecture and all options, and no folder of this machine. build.json has
    `compiler`, what TileLang gives to its compiler, and `symbols`, the entry symbols that it will ask the binary for.
    """

    outcome = "lowered"

    def __init__(self, folder, templates):
        self._folder, self._templates = folder, str(templates)
        self._lowered, self._used = [], []

    def watch(self):
        from tilelang.cache.ascend_binary_cache import AscendBinaryCache
        from tilelang.jit.kernel import JITKernel

        make_key, compile_artifact = AscendBinaryCache.make_key, JITKernel._compile_artifact

        def record(**facts):
            self._lowered.append(facts)
            return make_key(**facts)

        def compiled(kernel, *arguments):
            self._lowered.clear()
            artifact = compile_artifact(kernel, *arguments)
            if len(self._lowered) != 1:
                raise RuntimeError(f"TileLang asked for {len(self._lowered)} binaries of a kernel: another release?")
            symbols = sorted(str(f.attrs["global_symbol"]) for f in artifact.device_mod.functions.values())
            kernel.archwright_entry = self._keep(symbols, **self._lowered[0])
            return artifact

        def call(kernel, *arguments, **_named):
            self._used.append(kernel.archwright_entry)
            return outputs(kernel, arguments)

        AscendBinaryCache.make_key = record
        AscendBinaryCache.load = lambda _key, _format: NOT_COMPILED
        JITKernel._compile_artifact = compiled
        JITKernel.__call__ = call

    def newly_used(self):
        """Names of the entries of the kernels called since the last time."""
        used = list(dict.fromkeys(self._used))
        self._used.clear()
        return [f"ascend/{name}" for name in used]

    def _keep(self, symbols, code, **facts):
        facts["options"] = [option.replace(self._templates, "@templates@") for option in facts["options"]]
        if self._templates in code or any("/" in word for word in facts["options"]):
            raise RuntimeError("a folder of this machine is in what was lowered")
        text = json.dumps({"compiler": facts, "symbols": symbols}, sort_keys=True)
        name = _name(text, code)
        place = self._folder / name
        if not is_whole(place):
            place.mkdir(parents=True, exist_ok=True)
            (place / "kernel.asc").write_text(code)
            (place / "build.json").write_text(text + "\n")
        return name


def _name(build, code):
    return hashlib.sha256(f"{build}\0{code}".encode()).hexdigest()[:32]


def is_whole(place):
    """Whether the entry at `place` is there, and what its name says."""
    try:
        build, code = ((place / name).read_text() for name in ("build.json", "kernel.asc"))
    except (OSError, ValueError):
        return False
    return place.name == _name(build.removesuffix("\n"), code)


def outputs(kernel, arguments):
    """Fresh tensors for the outputs that the kernel would allocate, with the sizes that follow from its inputs."""
    import torch

    parameters = kernel.artifact.params
    results = [index % len(parameters) for index in kernel.adapter.result_idx or ()]
    inputs = [parameter for index, parameter in enumerate(parameters) if index not in results]
    if len(arguments) != len(inputs):
        raise TypeError(f"{len(arguments)} arguments for a kernel of {len(inputs)}")
    sizes = {}
    for parameter, argument in zip(inputs, arguments, strict=True):
        for size, value in zip(parameter.shape, getattr(argument, "shape", ()), strict=False):
            if not isinstance(size, int):
                sizes.setdefault(size, value)
    made = [
        torch.empty([_value(size, sizes) for size in parameters[index].shape], dtype=parameters[index].torch_dtype())
        for index in results
    ]
    return made[0] if len(made) == 1 else made or None


def _value(size, known):
    """The number that a symbolic size is: `num_rows * 4` with what is known of `num_rows`."""
    if isinstance(size, int):
        return size
    from tvm import arith, tirx

    for expression, value in known.items():
        if str(expression) == str(size):
            return int(value)
    variables = {e: tirx.IntImm(e.dtype, int(v)) for e, v in known.items() if isinstance(e, tirx.Var)}
    return int(arith.Analyzer().simplify(tirx.stmt_functor.substitute(size, variables)))
