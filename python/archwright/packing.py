"""Collects the kernels of an AOT pack out of the JIT caches into the package that goes into its wheel.

Run by CMake (cmake/ArchwrightPack.cmake) with the toolchain half's Python: `python -m archwright.packing BUILD CACHE
PACKAGE`. BUILD has `pack.json` and the result of each process; CACHE has each process's JIT caches.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .ascsource import read_source
from .cubin import read_cubin
from .elf import CUDA, Damaged, embedded_elfs
from .project import project_root

__all__ = ["collect"]

#: What DeepJIT's meta.json is kept for; the rest of it is paths of this machine.
_KEPT_OPTIONS = "compiler_options"


def collect(build: Path, cache: Path, package: str) -> Path:
    """Write `BUILD/pack/PACKAGE` anew and return its manifest. Raises Damaged for an entry that is not whole."""
    facts = json.loads((build / "pack.json").read_text(encoding="utf-8"))
    results = [
        result | {"calls": facts["calls"][result["operation"]], "process": process}
        for process in facts["processes"]
        for result in json.loads((build / "operations" / f"{process}.json").read_text(encoding="utf-8"))
    ]
    place = build / "pack" / package
    shutil.rmtree(build / "pack", ignore_errors=True)
    root = place / "root"
    root.mkdir(parents=True)
    entries: dict[str, Path] = {}
    for result in results:
        for name in result["kernels"]:
            entries.setdefault(name, cache / result["process"] / name)
    for name, source in entries.items():
        _copy_entry(source, root / name)
    lowered, headers = facts["jit"] == "lowered", frozenset(facts.pop("headers", ()))
    kernels = [
        kernel
        for name in sorted(entries)
        for kernel in (_lowered(root / name, name, headers) if lowered else _kernels(root / name, name))
    ]
    files = {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    used = {name: [r["operation"] for r in results if name in r["kernels"]] for name in entries}
    manifest = {
        **{key: value for key, value in facts.items() if key not in ("calls", "processes")},
        "operations": [{"name": r["operation"], "calls": r["calls"], "cases": r["cases"]} for r in results],
        "kernels": [kernel | {"operations": used[kernel["entry"]]} for kernel in kernels],
        "files": files,
    }
    _write_code(place, manifest)
    part = place / "manifest.part"
    part.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return part.rename(place / "manifest.json")


def _copy_entry(source: Path, target: Path) -> None:
    """Copy one cache entry without what names this machine."""
    target.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        if file.name == "meta.json":
            meta = json.loads(file.read_text(encoding="utf-8"))
            (target / file.name).write_text(json.dumps({_KEPT_OPTIONS: meta[_KEPT_OPTIONS]}) + "\n", encoding="utf-8")
        else:
            shutil.copyfile(file, target / file.name)


def _kernels(entry: Path, name: str) -> Iterator[dict[str, Any]]:
    """What the manifest says of each kernel in an entry: its resources, and the digest of the cubin it is in."""
    found = False
    for file in sorted(entry.iterdir()):
        for data in embedded_elfs(file.read_bytes(), CUDA):
            cubin, digest = read_cubin(data), hashlib.sha256(data).hexdigest()
            for kernel in cubin.kernels:
                found = True
                yield {"entry": name, "sha256": digest, "arch": cubin.arch, **asdict(kernel)}
    if not found:
        raise Damaged(f"{name}: no kernel in it")


def _lowered(entry: Path, name: str, headers: frozenset[str]) -> Iterator[dict[str, Any]]:
    """What the manifest says of each entry symbol of a lowered source. Raises Damaged for what its checks find."""
    text = (entry / "kernel.asc").read_text(encoding="utf-8")
    build = json.loads((entry / "build.json").read_text(encoding="utf-8"))
    source = read_source(text, headers)
    problems = list(source.problems)
    if sorted(source.symbols) != build["symbols"]:
        problems.append(f"entry symbols {sorted(source.symbols)}, TileLang will ask for {build['symbols']}")
    if problems:
        raise Damaged(f"{name}: {'; '.join(problems)}")
    digest = hashlib.sha256(text.encode()).hexdigest()
    for symbol in source.symbols:
        yield {"entry": name, "sha256": digest, "arch": build["compiler"]["target_arch"], "name": symbol}


def _write_code(place: Path, manifest: Mapping[str, Any]) -> None:
    """The activation module, the command to check a pack by hand, and the stand-in compiler.

    A source pack has the command that compiles it instead.
    """
    source = project_root() / "csrc" / "aot"
    if manifest["jit"] == "lowered":
        shutil.copyfile(source / "sourcepack.py", place / "__init__.py")
        shutil.copyfile(source / "ascend_compile.py", place / "__main__.py")
        return
    shutil.copyfile(source / "activation.py", place / "__init__.py")
    if manifest["jit"] == "tilelang":
        shutil.copyfile(source / "tilelang_cache.py", place / "tilelang_cache.py")
    text = (source / "nvcc.in").read_text(encoding="utf-8")
    values = {
        "VERSION_TEXT": manifest["nvcc_version_text"].rstrip("\n"),
        "DISTRIBUTION": manifest["distribution"],
        "VERSION": manifest["version"],
        "COUNT": str(len(manifest["kernels"])),
        "COMMAND": manifest["command"],
    }
    for name, value in values.items():
        if "'" in value or "`" in value or "$" in value:
            raise ValueError(f"{name} cannot stand in a shell script: {value}")
        text = text.replace(f"@{name}@", value)
    nvcc = place / "toolkit" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(text, encoding="utf-8")
    nvcc.chmod(0o755)


def main(words: Iterable[str]) -> None:
    build, cache, package = words
    print(collect(Path(build), Path(cache), package))


if __name__ == "__main__":
    main(sys.argv[1:])
