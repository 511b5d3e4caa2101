"""Runs the cases of operations under the simulated device, or lowers them for Ascend, and writes down which kernels
they used.

The build of an AOT pack starts it once per process of the recipe, with the Python of the runtime half: upstream's own
host code chooses its kernels and compiles them into the caches that this script names. Nothing of `archwright` is
imported.

A case file has one generator function per operation, named as in component.toml. It is given the model and yields
`(shape, call)`: the numbers that make the case, and a callable of no arguments that makes the inputs and calls
upstream's public entry point. Functions whose name starts with an underscore are its own business.

    worker.py --cases aot_cases.py --cache FOLDER -c cases/NAME.json -o operations/NAME.json

The file after -c holds {"operations", "dimensions", "tokens"}; `expected` of an operation says whether this target has
its kernels. Where it has, a case that raises is an error (status 1); where it has not, upstream's words are
kept. The result is written whole or not at all.
"""

import argparse
import atexit
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import ascend_lowering
import tilelang_cache

#: Variables of DeepJIT's two users, each with its own prefix, and of TileLang.
DEEPJIT_PREFIXES = ("DG", "EP")


class Model:
    """The model's dimensions by name (`model.hidden_size`) and its token counts by phase."""

    def __init__(self, facts):
        self._facts = facts

    def __getattr__(self, name):
        try:
            return self._facts["dimensions"][name]
        except KeyError:
            raise AttributeError(f"the shape file has no dimension {name}") from None

    def phases(self):
        """The names of the phases."""
        return list(self._facts["tokens"])

    def tokens(self, *phases):
        """Token counts of the named phases (of all, without a name), ascending, each once."""
        return sorted({n for phase in phases or self._facts["tokens"] for n in self._facts["tokens"][phase]})


class JitCaches:
    """The JIT caches under one folder, and what of them was used."""

    outcome = "compiled"

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)  # also when no kernel is needed: the build looks for it
        self._tilelang_keys = []
        for prefix in DEEPJIT_PREFIXES:
            os.environ[f"{prefix}_JIT_CACHE_DIR"] = str(folder / "deepjit")
        os.environ["TILELANG_CACHE_DIR"] = str(folder / "tilelang")
        tilelang_cache.make_keys_portable()
        tilelang_cache.watch(folder / "tilelang", self._tilelang_keys)
        self._seen = {}

    def newly_used(self):
        """Names of the entries used since the last call. DeepJIT touches an entry's mark when it finds it."""
        used = []
        for mark in sorted((self.folder / "deepjit" / "cache").glob("*/.committed")):
            stamp = mark.stat().st_mtime_ns
            if self._seen.get(mark, START) < stamp:
                used.append(f"deepjit/cache/{mark.parent.name}")
            self._seen[mark] = max(stamp, START)
        used += [f"tilelang/{name}" for name in dict.fromkeys(self._tilelang_keys)]
        self._tilelang_keys.clear()
        return used


START = time.time_ns()


def lowering(figures, folder):
    """What is lowered for an Ascend device is kept in `folder`."""
    ascend_lowering.install(figures)
    ascend_lowering.engine_arguments()
    folder.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.TemporaryDirectory()  # TileLang keeps kernels in memory only where it may write them too
    atexit.register(scratch.cleanup)
    os.environ["TILELANG_CACHE_DIR"] = scratch.name
    from tilelang.env import TILELANG_TEMPLATE_PATH

    sources = ascend_lowering.Sources(folder / "ascend", TILELANG_TEMPLATE_PATH)
    sources.watch()
    return sources


class Remembered:
    """What an earlier process lowered from the same inputs, beside its sources: lowering takes minutes, and no compiler
    cache helps with that. `environment.json` of the build folder covers the library, the locks and the compilers.
    """

    def __init__(self, options, figures):
        files = [*Path(__file__).parent.glob("*.py"), *options.cases.parent.glob("*.py"), options.facts]
        files.append(options.facts.parent.parent / "environment.json")
        inputs = hashlib.sha256(figures.encode())
        for file in sorted(files, key=lambda file: file.name):
            inputs.update(f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\0".encode())
        self._cache, self._operations = options.cache, list(json.loads(options.facts.read_text())["operations"])
        self.path = options.cache / f"lowered-{inputs.hexdigest()[:32]}.json"

    def read(self):
        """The text of the result; None where there is none, or a source of it is lost or damaged."""
        try:
            text = self.path.read_text()
            results = json.loads(text)
            operations = [result["operation"] for result in results]
            names = {name for result in results for name in result["kernels"]}
        except (OSError, ValueError, TypeError, KeyError):
            return None
        whole = all(ascend_lowering.is_whole(self._cache / name) for name in names)
        return text if whole and operations == self._operations else None


def load(path):
    """Import the case file by its path; it may import others beside it."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("archwright_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(operation, model, caches, expected):
    """The cases of `operation`, each with its outcome. Raises what a case raised when it was expected to work."""
    results = []
    for shape, call in operation(model):
        result = {"shape": shape, "outcome": caches.outcome, "reason": ""}
        try:
            call()
            import torch

            torch.cuda.synchronize()
        except Exception as error:
            if expected:
                print(f"case {shape}", file=sys.stderr)
                raise
            result |= {"outcome": "no kernel", "reason": words(error)}
        result["kernels"] = caches.newly_used()
        results.append(result)
    return results


def words(error):
    """Upstream's words, in one line, without paths and addresses of this machine."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.partition("C++ CapturedTraceback")[0].replace(str(Path.home()), "~")[:400]


def outcome(cases):
    return {"cases": cases, "kernels": sorted({name for case in cases for name in case["kernels"]})}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("-c", dest="facts", type=Path, required=True)
    parser.add_argument("-o", dest="out", type=Path, required=True)
    options = parser.parse_args()
    facts = json.loads(options.facts.read_text())
    figures, remembered = os.environ.get("ARCHWRIGHT_LOWER"), None
    if figures:
        remembered = Remembered(options, figures)
        if text := remembered.read():
            write(options.out, text)
            print("worker.py: remembered")  # launcher.py looks for it
            return
        caches = lowering(json.loads(figures), options.cache)
    elif os.environ.get("ARCHWRIGHT_SIMULATED_DEVICE"):
        caches = JitCaches(options.cache)
    else:
        sys.exit("worker.py: neither under the simulated device nor lowering for Ascend")
    cases, model = load(options.cases), Model(facts)
    try:
        results = [
            {"operation": name} | outcome(run(getattr(cases, name), model, caches, known["expected"]))
            for name, known in facts["operations"].items()
        ]
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    if empty := [result["operation"] for result in results if not result["cases"]]:
        sys.exit(f"worker.py: no case for these shapes: {', '.join(empty)}")
    text = json.dumps(results, indent=1) + "\n"
    if remembered:
        write(remembered.path, text)
    write(options.out, text)


def write(path, text):
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    main()
