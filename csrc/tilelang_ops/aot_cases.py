"""Cases of TileLang ops: tile-kernels as DeepInfer calls it, and DeepInfer's own ops for CUDA.

One generator function an operation, named as in component.toml; csrc/aot/worker.py says how they are run. Token counts
are run-time symbols in nearly every kernel, so that most cases find the kernel of the first.
"""

from cases_engine_cache import *  # noqa: F403
from cases_engine_index import *  # noqa: F403
from cases_engine_sampling import *  # noqa: F403
from cases_mhc import *  # noqa: F403
from cases_tile_kernels import *  # noqa: F403
