"""TileLang's kernel cache, as the build of a pack watches it and as an installed pack stands behind it.

Nothing of TileLang is imported here: its modules are changed when something else imports them.
"""

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
from pathlib import Path

CACHE_MODULE = "tilelang.cache.kernel_cache"
_BUILDER_MODULE = "tilelang.language.eager.builder"
_ASSERT_MODULE = "tilelang.cuda.debug"


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `action` with the module `name` as soon as that has been imported."""

    def __init__(self, name, action):
        self.name, self.action = name, action

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.action(module)

        spec.loader.exec_module = exec_module
        return spec


def when_imported(name, action):
    """Call `action(module)` once: now when the module is there, else when it is imported."""
    if module := sys.modules.get(name):
        action(module)
    else:
        sys.meta_path.insert(0, _Finder(name, action))


def make_keys_portable():
    """Keep folders of this machine out of the keys.

    The key is a digest of the kernel's program, and a device assert has in its text the source files that lead to it.
    """
    when_imported(_BUILDER_MODULE, _name_sources_without_folders)


def _name_sources_without_folders(module):
    stack_of = module.Builder.get_fileline_stack

    @functools.wraps(stack_of)
    def portable(self, *args, **kwargs):
        return [(_within_package(file), *rest) for file, *rest in stack_of(self, *args, **kwargs)]

    module.Builder.get_fileline_stack = portable


def _within_package(file):
    """`tile_kernels/quant/common.py`, wherever the package is installed."""
    folders = [folder for folder in map(os.path.abspath, sys.path) if file.startswith(folder + os.sep)]
    return os.path.relpath(file, max(folders, key=len)) if folders else Path(file).name


def watch(folder, keys):
    """Append the path below `folder` of each entry that is used, compiled or found, to the list `keys`."""

    def act(module):
        tag = module.KernelCache._tag_kernel_cache_entry

        def note(kernel, key, path):
            keys.append(os.path.relpath(path, folder))
            return tag(kernel, key, path)

        module.KernelCache._tag_kernel_cache_entry = staticmethod(note)

    when_imported(CACHE_MODULE, act)


def put_behind(root, on_miss):
    """Look kernels up below `root` when the user's own cache does not have them; `on_miss(function, key)` may raise.

    Entries are loaded where they lie. Upstream's own way of loading is not taken for them: it deletes what it finds
    damaged.
    """
    when_imported(CACHE_MODULE, functools.partial(_hook, Path(root), on_miss))


def _hook(root, on_miss, module):
    _believe_in_toolkit()
    cache_class = module.KernelCache
    load, signature = cache_class._load_kernel_from_disk, inspect.signature(cache_class._load_kernel_from_disk)

    @functools.wraps(load)
    def load_or_look_behind(cache, key, *args, **kwargs):
        kernel = load(cache, key, *args, **kwargs)
        if kernel is None:
            named = signature.bind(cache, key, *args, **kwargs).arguments
            kernel = _load_in_place(module, root, named) or on_miss(named.get("func"), key)
        return kernel

    cache_class._load_kernel_from_disk = load_or_look_behind


def _load_in_place(module, root, named):
    """The kernel from the pack's entry, or None when there is none."""
    cache, key = named["self"], named["key"]
    entry = root / cache._get_cache_namespace() / cache.cache_root_dir / key
    if not cache._is_complete_cache_dir(str(entry)):
        return None
    text = module.CachedTextSource
    kernel = cache._build_kernel(
        func=named.get("func"),
        host_kernel_source=text(path=str(entry / cache.host_kernel_path)),
        device_kernel_source=text(path=str(entry / cache.device_kernel_path)),
        kernel_lib_path=str(entry / cache.kernel_lib_path),
        kernel_params=module.load_kernel_params((entry / cache.params_path).read_text()),
        **{name: named.get(name) for name in ("backend_context", "out_idx", "pass_configs", "compile_flags")},
    )
    cache._tag_kernel_cache_entry(kernel, key, str(entry))
    return kernel


def _believe_in_toolkit():
    """TileLang looks for a CUDA toolkit when it is imported; before torch, that was before the stand-in was there.

    Its modules have copied what it found, and without a toolkit it leaves device asserts out, which changes the keys.
    """
    home = os.environ.get("CUDA_HOME")
    if not home or sys.modules["tilelang.env"].CUDA_HOME:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("tilelang") and hasattr(module, "CUDA_HOME"):
            module.CUDA_HOME = home
    if asserts := sys.modules.get(_ASSERT_MODULE):
        asserts._IS_CUDA_AVAILABLE = True
