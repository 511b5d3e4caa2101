"""Runs the test suite inside the tile-kernels sdist under the simulated device, in upstream's precompile selection.

    ./bootstrap python benchmarks/upstream_suite.py --target sm100 --json suite-sm100.json

Nothing is computed there, so no assertion about values can hold. What counts is that a test went through all of its
code: every kernel generated, compiled and launched. What was done is kept, and done only once: a second run goes on.
README.md says how tests are judged.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import queue
import re
import select
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archwright.components import find_component
from archwright.environment import Environment, create_environment
from archwright.plan import available_cores
from archwright.project import cache_dir
from archwright.simulate import simulation
from archwright.sources import fetch
from archwright.targets import target_table

DEVICES = {"sm100": "b200", "sm90": "h100"}
#: What pytest consists of; the runtime half has none, and stays as it is locked.
PYTEST = ("pytest", "pluggy", "iniconfig", "pygments")
GOAL = 0.95
#: An exception with one of these words came from the device, and so is ours.
DEVICE_WORDS = re.compile(r"CUDA error|CUDA_ERROR_|cudaError[A-Z]|libcuda|CUBLAS_STATUS|out of memory|AW70\d")
KINDS = {
    "complete": "every kernel generated, compiled and launched",
    "no kernel": "went through without launching what it loaded, or anything",
    "device": "stopped by the simulated device: our bugs",
    "upstream": "upstream itself cannot run it for this target",
    "crash": "the process died",
    "timeout": "not finished in time",
}


@dataclass(frozen=True)
class Suite:
    """Where the suite runs, and how."""

    target: str
    environment: Environment
    folder: Path
    words: tuple[str, ...]
    timeout: int
    cache: bool
    device: dict[str, str]

    @property
    def results(self) -> Path:
        return self.folder / "results.jsonl"

    def variables(self, pipes: tuple[int, int]) -> dict[str, str]:
        environment = self.environment
        return {
            "PATH": os.pathsep.join([str(environment.cxx.parent), str(environment.toolkit / "bin"), os.defpath]),
            "HOME": str(self.folder / "home"),
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(self.folder / "pytest"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_HOME": str(environment.toolkit),
            "NVCC_CCBIN": str(environment.cxx),
            "CXX": str(environment.cxx),
            "CC": str(environment.cc),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "TILELANG_CACHE_DIR": str(self.folder / "tilelang"),
            "TILELANG_DISABLE_CACHE": "0" if self.cache else "1",
            "TK_PRECOMPILE": "1",
            "TK_TEST_LEVEL": "0",
            # every tensor is fresh memory, and so zero: what a test finds there does not depend on the ones before it
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
            "ARCHWRIGHT_SUITE_PIPES": ",".join(map(str, pipes)),
            **self.device,
        }


@dataclass
class Done:
    """Results by test, appended to a file as they come."""

    path: Path
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> None:
        if self.path.is_file():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # the last line of a run that was killed
                    result = json.loads(line)
                    self.tests[result["test"]] = result

    def add(self, result: dict[str, Any]) -> None:
        with self.lock, self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
            self.tests[result["test"]] = result


class Worker:
    """One pytest process that runs the tests it is asked for."""

    def __init__(self, suite: Suite) -> None:
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()
        pipes = (theirs_read, theirs_write)
        command = [str(suite.environment.runtime / "bin" / "python"), "-m", "pytest", "-p", "suite_plugin"]
        command += [
            "-q",
            "--run-benchmark",
            "--tb=no",
            "--show-capture=no",
            "-p",
            "no:cacheprovider",
            "-c",
            "pyproject.toml",
            "--rootdir",
            ".",
            *suite.words,
            "tests",
        ]
        with (suite.folder / "workers.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=suite.folder / "sdist",
                env=suite.variables(pipes),
                pass_fds=pipes,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        os.close(theirs_read)
        os.close(theirs_write)
        self._requests = os.fdopen(ours_write, "w", encoding="utf-8")
        self._answers = os.fdopen(ours_read, encoding="utf-8")
        self._log = suite.folder / "log" / f"{self.process.pid}.jsonl"
        first = self._answer(600)
        if first is None:
            sys.exit(f"pytest ended before the first test: {suite.folder / 'workers.log'}")
        self.items: list[str] = first["items"]

    def run(self, test: str, timeout: int) -> dict[str, Any]:
        """What `test` did. The process is gone when that is a crash or a timeout."""
        begin = time.monotonic()
        self._requests.write(json.dumps(test) + "\n")
        self._requests.flush()
        result = self._answer(timeout)
        if result is not None:
            return result
        late = self.process.poll() is None and time.monotonic() - begin >= timeout
        if late:
            self.process.kill()
        self.process.wait()
        refused = self._refused()
        reason = f"AW704: {refused}" if refused else f"status {self.process.returncode}"
        outcome = "refused" if refused else "timeout" if late else "crash"
        seconds = round(time.monotonic() - begin, 2)
        return {"test": test, "outcome": outcome, "reason": reason, "seconds": seconds, "launches": 0}

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        self.process.wait()

    def _answer(self, timeout: int) -> dict[str, Any] | None:
        if not select.select([self._answers], [], [], timeout)[0]:
            return None
        line = self._answers.readline()
        answer: dict[str, Any] | None = json.loads(line) if line else None
        return answer

    def _refused(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-3:] if self._log.is_file() else []
        return next((json.loads(line)["function"] for line in lines if '"event": "refused"' in line), "")


def main() -> None:
    options = _options()
    folder: Path = (options.folder or cache_dir() / "suite" / options.target).absolute()
    done = Done(folder / "results.jsonl")
    done.load()
    listed = folder / "tests.json"
    if options.report and not listed.is_file():
        sys.exit(f"no run in {folder}: nothing to report")
    if options.report:
        chosen: list[str] = json.loads(listed.read_text(encoding="utf-8"))
    else:
        suite = _prepare(options, folder)
        first = Worker(suite)
        chosen = spread(sample(first.items, options.sample))
        listed.write_text(json.dumps(chosen), encoding="utf-8")
        todo = [test for test in chosen if test not in done.tests or _wanted(options, done.tests[test])]
        print(f"{suite.target}: {len(chosen)} of {len(first.items)} tests, {len(todo)} to run", flush=True)
        _run(suite, done, todo, first, options.workers)
    found = report(options.target, [done.tests[test] for test in chosen if test in done.tests], len(chosen))
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=sorted(DEVICES), default="sm100")
    parser.add_argument("-k", metavar="EXPRESSION", help="only these tests, as pytest understands it")
    parser.add_argument("--sample", type=float, default=100, metavar="PERCENT", help="some tests of every file")
    parser.add_argument("--workers", type=int, default=available_cores(), help="processes (default: the cores)")
    parser.add_argument(
        "--again", choices=("none", "failed", "all"), default="none", help="run again what has a result"
    )
    parser.add_argument(
        "--no-cache", dest="cache", action="store_false", help="compile without writing to TileLang's cache: faster"
    )
    parser.add_argument("--timeout", type=int, default=600, metavar="SECONDS", help="for one test (default: 600)")
    parser.add_argument("--folder", type=Path, help="results, TileLang's cache and logs (default: the user's cache)")
    parser.add_argument("--report", action="store_true", help="run nothing: what the last run has found so far")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found here")
    return parser.parse_args()


def _wanted(options: argparse.Namespace, result: dict[str, Any]) -> bool:
    return options.again == "all" or (options.again == "failed" and judge(result)[0] != "complete")


def _prepare(options: argparse.Namespace, folder: Path) -> Suite:
    """A copy of the suite, beside links to pytest, in a folder that outlives this run."""
    for name in ("home", "log", "pytest"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    source = fetch(find_component("tilelang_ops")).path
    shutil.rmtree(folder / "sdist", ignore_errors=True)
    shutil.copytree(source / "tests", folder / "sdist" / "tests")
    shutil.copy(source / "pyproject.toml", folder / "sdist")
    links = [file for name in PYTEST for file in _parts(name)]
    for place in links:
        link = folder / "pytest" / place.name
        link.unlink(missing_ok=True)
        link.symlink_to(place)
    shutil.copy(Path(__file__).with_name("suite_plugin.py"), folder / "pytest")
    environment = create_environment(target_table().targets[options.target])
    device = simulation(DEVICES[options.target], environment, folder / "log")
    words = ("-k", options.k) if options.k else ()
    return Suite(options.target, environment, folder, words, options.timeout, options.cache, device)


def _parts(name: str) -> list[Path]:
    """What a distribution of the tool's own environment puts into site-packages."""
    distribution = importlib.metadata.distribution(name)
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    return [Path(str(distribution.locate_file(top))) for top in sorted(tops)]


def sample(tests: Sequence[str], percent: float) -> list[str]:
    """The same tests each time: spread evenly over each file's, at least one."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    result = []
    for own in files.values():
        count = max(1, round(len(own) * percent / 100))
        result += [own[i * len(own) // count] for i in range(count)]
    return result


def spread(tests: Sequence[str]) -> list[str]:
    """All of them, a few of every file first: what a run that is cut short did says something about the rest."""
    order = [test for percent in (2, 10, 40) for test in sample(tests, percent)]
    benchmarks = {test.replace("_benchmark[", "["): test for test in tests if "_benchmark[" in test}
    # a test and its benchmark have the same kernels, and a process compiles each one once
    pairs = [(test, benchmarks.get(test, test)) for test in [*order, *tests] if "_benchmark[" not in test]
    return list(dict.fromkeys([*(test for pair in pairs for test in pair), *tests]))


def _run(suite: Suite, done: Done, todo: Sequence[str], first: Worker, workers: int) -> None:
    """Neighbours share kernels, so that a worker takes several at once."""
    chunks: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
    for at in range(0, len(todo), 8):
        chunks.put(todo[at : at + 8])
    begin = time.monotonic()
    count = iter(range(1, len(todo) + 1))

    def work(worker: Worker | None) -> None:
        for test in _taken(chunks):
            worker = worker or Worker(suite)
            result = worker.run(test, suite.timeout)
            done.add(result)
            number, kind = next(count), judge(result)[0]
            left = (time.monotonic() - begin) / number * (len(todo) - number) / 60
            why = "" if kind == "complete" else f"  {result.get('reason', '')[:120]!r}"
            print(
                f"{number}/{len(todo)} {kind:9} {result['seconds']:6.1f} s, {left:4.0f} min left  {test}{why}",
                flush=True,
            )
            if worker.process.poll() is not None:
                worker.close()
                worker = None
        if worker:
            worker.close()

    threads = [threading.Thread(target=work, args=(first if i == 0 else None,)) for i in range(max(1, workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _taken(chunks: queue.SimpleQueue[Sequence[str]]) -> Iterator[str]:
    while True:
        try:
            yield from chunks.get_nowait()
        except queue.Empty:
            return


def judge(result: dict[str, Any]) -> tuple[str, str]:
    """The kind of a result, one of KINDS, and its reason in one line without numbers that differ from test to test."""
    text = " ".join(result.get("reason", "").split())
    reason = re.sub(r"(/[^\s/:]+)+/", "", text)  # paths of this machine
    reason = re.sub(r"0x[0-9a-f]+|\b\d{3,}\b", "N", reason)[:300]
    if result["outcome"] == "passed" and result["not launched"]:
        return "no kernel", f"loaded but not launched: {', '.join(result['not launched'])}"
    if result["outcome"] == "passed":
        return ("complete" if result["launches"] else "no kernel"), ""
    if result["outcome"] in ("crash", "timeout"):
        return result["outcome"], reason
    if result["outcome"] == "refused" or DEVICE_WORDS.search(text):
        return "device", reason
    return "upstream", f"{result.get('type', result['outcome'])}: {reason}"


def report(target: str, results: Sequence[dict[str, Any]], chosen: int) -> dict[str, Any]:
    """Counts by kind and by file, reasons with counts, and every test that is not complete."""
    judged = [(result, *judge(result)) for result in results]
    kinds = Counter(kind for _, kind, _ in judged)
    files: dict[str, Counter[str]] = {}
    for result, kind, _ in judged:
        files.setdefault(result["test"].partition("::")[0], Counter())[kind] += 1
    reasons = Counter((kind, reason) for _, kind, reason in judged if reason)
    return {
        "target": target,
        "device": DEVICES[target],
        "chosen": chosen,
        "done": len(results),
        "complete": kinds["complete"] / chosen if chosen else 0.0,
        "goal": GOAL,
        "kinds": {kind: kinds[kind] for kind in KINDS},
        "kernels": len({kernel for result in results for kernel in result.get("kernels", ())}),
        "launches": sum(result["launches"] for result in results),
        "seconds": round(sum(result["seconds"] for result in results)),
        "files": {name: dict(counts) for name, counts in sorted(files.items())},
        "reasons": [{"kind": k, "reason": r, "tests": n} for (k, r), n in reasons.most_common()],
        "tests": {result["test"]: [kind, reason] for result, kind, reason in judged if kind != "complete"},
        "not_verified": "nothing was computed: no value that a kernel would give was looked at",
    }


def show(found: dict[str, Any]) -> None:
    print(f"\n{found['target']} on {found['device']}: {found['done']} of {found['chosen']} tests done")
    for kind, what in KINDS.items():
        print(f"  {found['kinds'][kind]:6}  {kind:9}  {what}")
    for name, counts in found["files"].items():
        print(f"  {name:56}" + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    for reason in found["reasons"]:
        print(f"  {reason['tests']:6}  {reason['kind']:9}  {reason['reason'][:160]}")
    unfinished = f"not known, {found['chosen'] - found['done']} tests are left"
    reached = found["complete"] >= found["goal"]
    verdict = "met" if reached else "missed" if found["done"] == found["chosen"] else unfinished
    print(
        f"  complete: {found['complete']:.1%}, goal {found['goal']:.0%}: {verdict}; {found['kernels']} kernel names, "
    )
    print(f"  {found['launches']} launches, {found['seconds']} s of tests. {found['not_verified']}")


if __name__ == "__main__":
    main()
