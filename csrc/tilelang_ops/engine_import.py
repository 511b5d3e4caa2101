"""Imports DeepInfer's own TileLang ops, unmodified, from an installed engine or from its source tree.

Their files need more than they use: each imports pytest at its top for the tests at its end, and the package around
them wants an extension module. What is missing is stood in for here, and only where it is missing:

pytest             any name, callable, iterable, returns itself: enough for decorators of tests that nobody runs.
                   Upstream lists pytest for development only, so a production environment has the same gap.
deepinfer          when its own __init__ cannot run (a source tree without what the wheel adds): an empty package with
                   the same __path__ and PLATFORM, which is all that the ops import from it.

`deepinfer._C` is never stood in for: fused_sample and sampler read their argument classes from it.
"""

import importlib
import importlib.util
import sys
import types

PACKAGE = "deepinfer.model_executor.layers.tilelang_ops"


class _Anything:
    def __call__(self, *_arguments, **_named):
        return self

    def __iter__(self):
        return iter(())

    def __getattr__(self, name):
        if name.startswith("__"):  # inspect and pickle ask for these, and believe what they get
            raise AttributeError(name)
        return self


def op(module, name):
    """The public entry point `name` of DeepInfer's op file `module`, with DeepInfer's process-wide settings applied."""
    apply_worker_settings()
    prepare()
    return getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)


def apply_worker_settings():
    """What DeepInfer sets in every worker: it is compiled into tile-kernels' kernels.

    worker/runtime_config.py:configure_worker_kernels.
    """
    import tile_kernels

    if tile_kernels.config.is_ascend():
        tile_kernels.use_deterministic_algorithms(True)
    else:
        tile_kernels.set_pdl(True)


def prepare():
    """Make `deepinfer` importable."""
    if "pytest" not in sys.modules and importlib.util.find_spec("pytest") is None:
        stand_in = types.ModuleType("pytest", "Stand-in by Archwright: DeepInfer's ops import it for their tests.")
        stand_in.__getattr__ = _Anything().__getattr__
        sys.modules["pytest"] = stand_in
    try:
        import deepinfer  # noqa: F401
    except ImportError:
        _stand_in_for_package()


def _stand_in_for_package():
    spec = importlib.util.find_spec("deepinfer")
    if spec is None:
        raise ModuleNotFoundError("no deepinfer here: its wheel or its source tree must be on the path")
    package = types.ModuleType("deepinfer", "Stand-in by Archwright: see engine_import.py.")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules["deepinfer"] = package
    package.PLATFORM = importlib.import_module("deepinfer.platform").get_platform()
