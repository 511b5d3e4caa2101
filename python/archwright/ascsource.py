"""Ascend C sources as TileLang lowers them: what can be checked without a compiler, and their entry symbols."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["AscSource", "read_source"]

#: Comments and literals, in which brackets and words mean nothing.
_QUIET = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
_INCLUDE = re.compile(r"(?m)^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]")
#: `extern "C" __global__ __vector__ void name(`; the core is cube, vector or mix.
_ENTRY = re.compile(r'extern\s+"C"\s+__global__\s+((?:__\w+__(?:\([^)]*\))?\s+)*)void\s+(\w+)\s*\(')
#: Words that only CUDA's dialect has. (`threadIdx` and `__launch_bounds__` are Ascend's too, inside SIMT functions.)
_CUDA = re.compile(
    r"\b(?:cuda\w*|cu[A-Z]\w+|__syncthreads|__syncwarp|__shfl\w*|blockDim|gridDim|nv_\w+|__nv_\w+|wgmma\w*|tcgen05\w*"
    r"|mbarrier\w*|cp_async\w*|cutlass\w*|cute)\b|\basm\s+(?:volatile\s*)?\("
)
_PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class AscSource:
    """One lowered source: its entry symbols, its includes, and everything that is wrong with it."""

    symbols: tuple[str, ...]
    includes: tuple[str, ...]
    problems: tuple[str, ...]


def read_source(text: str, headers: frozenset[str]) -> AscSource:
    """Check `text`. `headers` are the names that it may include, as TileLang's template folder has them.

    Nothing here says that it compiles: brackets are balanced, includes exist, there is an entry symbol, each once,
    and no word of CUDA's.
    """
    includes = tuple(_INCLUDE.findall(text))
    entries = [match[2] for match in _ENTRY.finditer(text)]
    bare = _QUIET.sub(" ", text)
    problems = [*_unbalanced(bare)]
    problems += [f"includes {name}, which is not among TileLang's headers" for name in includes if name not in headers]
    problems += [f"CUDA's {word}" for word in dict.fromkeys(_CUDA.findall(bare))]
    if not entries:
        problems.append('no entry symbol (`extern "C" __global__`)')
    problems += [f"two entry symbols {name}" for name in dict.fromkeys(entries) if entries.count(name) > 1]
    if re.search(r"[^\t\n\x20-\U0010ffff]", text):
        problems.append("a control character")
    return AscSource(tuple(entries), includes, tuple(problems))


def _unbalanced(bare: str) -> list[str]:
    """The first bracket that has no partner."""
    open_: list[tuple[str, int]] = []
    for line, content in enumerate(bare.split("\n"), 1):
        for character in content:
            if character in "([{":
                open_.append((character, line))
            elif character in _PAIRS and (not open_ or open_.pop()[0] != _PAIRS[character]):
                return [f"line {line}: {character} without its partner"]
    return [f"line {open_[-1][1]}: {open_[-1][0]} is never closed"] if open_ else []
