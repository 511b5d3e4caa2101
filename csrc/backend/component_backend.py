"""PEP 517 hooks of a component: finds Archwright beside the recipes and hands over to `archwright.backend`.

Reached through `backend` in each component's folder (a link in a checkout), so that `pip wheel csrc/<component>`
works in any prepared environment, whichever checkout (or installed wheel) the recipe belongs to.
"""

import sys
from pathlib import Path

_root = next(p for p in Path(__file__).resolve().parents if (p / "cmake" / "Archwright.cmake").is_file())
#: a checkout has python/archwright; in an installed wheel the project lies inside the package (archwright/_project)
sys.path.insert(0, str(_root / "python" if (_root / "python" / "archwright").is_dir() else _root.parents[1]))

from archwright.backend import (  # noqa: E402
    Metadata,
    build_sdist,
    build_wheel,
    compile_host_files,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "Metadata",
    "build_sdist",
    "build_wheel",
    "compile_host_files",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]
