"""The job pool with the real launcher in real processes (cases D1 and D2); only the compiler is a stand-in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archwright import launcher
from archwright.components import Unit
from archwright.explain import explain_failure
from archwright.pool import Measured, Pool, remember_costs

LAUNCHER = [sys.executable, "-I", "-S", launcher.__file__]

#: "Compiles" NAME.cpp: notes start and end, and between them does what NAME.cpp says.
COMPILER = """\
source=$2
echo "start $(basename $source)" >>"$LOG"
. $source
echo "end $(basename $source)" >>"$LOG"
"""


class Workshop:
    """Sources, a compiler and its log; `start` runs a compile through the launcher in the background."""

    def __init__(self, folder: Path, compiler: Path) -> None:
        self.folder, self.compiler = folder, compiler
        self.log = folder / "log"
        self.log.touch()
        self.started: list[subprocess.Popen[str]] = []

    def source(self, name: str, script: str = "sleep 0.15") -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script + "\n")
        return str(path)

    def start(self, pool: str | None, source: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "LOG": str(self.log)}
        environment.pop("ARCHWRIGHT_POOL", None)
        if pool is not None:
            environment["ARCHWRIGHT_POOL"] = pool
        process = subprocess.Popen(
            [*LAUNCHER, str(self.compiler), "-c", source, "-o", "x.o"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def events(self) -> list[tuple[str, str]]:
        return [(line.split()[0], line.split()[1]) for line in self.log.read_text().splitlines()]

    def starts(self) -> list[str]:
        return [name for event, name in self.events() if event == "start"]


@pytest.fixture
def shop(tmp_path: Path, script: Callable[[str, str], Path]) -> Iterator[Workshop]:
    made = Workshop(tmp_path, script("compiler", COMPILER))
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def finish(*processes: subprocess.Popen[str]) -> list[int]:
    return [process.wait(timeout=30) for process in processes]


def hold(shop: Workshop, pool: Pool, count: int, sources: list[str]) -> list[subprocess.Popen[str]]:
    """Occupy the pool, start `sources`, and let go when all `count` of them wait: now the pool decides who is next."""
    gate = shop.folder / "gate"
    blocker = shop.source("blocker.cpp", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    pool.costs = {**pool.costs, blocker: Unit(blocker, 1, pool.memory_mib)}
    first = shop.start(pool.address, blocker)
    wait_for(lambda: pool.running == (blocker,))
    others = [shop.start(pool.address, source) for source in sources]
    wait_for(lambda: len(pool._waiting) == count)
    gate.touch()
    return [first, *others]


def test_longest_first_across_components(shop: Workshop) -> None:
    times = {"deep_ep/a.cpp": 42, "deep_ep/b.cpp": 18, "engine/c.cpp": 20, "flash_mla/d.cu": 165, "engine/e.cpp": 1}
    costs = {shop.source(name, "true"): Unit(name, seconds, 10) for name, seconds in times.items()}

    with Pool(1, 1000, costs) as pool:
        assert set(finish(*hold(shop, pool, len(costs), list(costs)))) == {0}

    assert shop.starts() == ["blocker.cpp", "d.cu", "a.cpp", "c.cpp", "b.cpp", "e.cpp"]


def test_d1_neither_the_memory_nor_the_jobs_are_exceeded(shop: Workshop) -> None:
    sizes = {"a": 600, "b": 500, "c": 400, "d": 300, "e": 300, "f": 200, "g": 100, "h": 100}
    costs = {shop.source(f"{name}.cpp", "sleep 0.2"): Unit(name, mib / 100, mib) for name, mib in sizes.items()}

    with Pool(3, 1000, costs) as pool:
        assert set(finish(*hold(shop, pool, len(costs), list(costs)))) == {0}

    running: list[str] = []
    most = 0
    for event, name in shop.events():
        if name == "blocker.cpp":
            continue
        running.append(name) if event == "start" else running.remove(name)
        most = max(most, len(running))
        assert len(running) <= 3
        assert sum(sizes[n.removesuffix(".cpp")] for n in running) <= 1000
    assert most >= 2, "the memory that is there is used"
    assert sorted(shop.starts()) == sorted(["blocker.cpp", *(f"{name}.cpp" for name in sizes)])


def test_d1_a_unit_larger_than_the_budget_runs_alone(shop: Workshop) -> None:
    costs = {shop.source(f"{n}.cpp"): Unit(n, s, m) for n, s, m in (("huge", 1, 5000), ("a", 9, 10), ("b", 9, 10))}

    with Pool(4, 1000, costs) as pool:
        finish(*hold(shop, pool, 3, list(costs)))

    events = [e for e in shop.events() if e[1] != "blocker.cpp"]
    position = events.index(("start", "huge.cpp"))
    assert events[position + 1] == ("end", "huge.cpp")


def test_what_no_recipe_names_goes_first(shop: Workshop) -> None:
    """A precompiled header: others wait for it."""
    known = shop.source("long.cpp", "true")
    header = shop.source("cmake_pch.hxx.cxx", "true")

    with Pool(1, 4000, {known: Unit("long.cpp", 165, 100)}) as pool:
        finish(*hold(shop, pool, 2, [known, header]))

    assert shop.starts() == ["blocker.cpp", "cmake_pch.hxx.cxx", "long.cpp"]


def test_a_relative_source_is_found_by_its_absolute_path(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shop.source("a.cpp", "true")
    monkeypatch.chdir(shop.folder)
    with Pool(1, 1000, {source: Unit("a.cpp", 1, 1)}) as pool:
        assert finish(shop.start(pool.address, "./a.cpp")) == [0]
        assert [measured.source for measured in pool.measured] == [source]


def test_a_failure_stops_the_others_and_keeps_the_output(shop: Workshop, tmp_path: Path) -> None:
    bad = shop.source("bad.cpp", "echo 'bad.cpp:1: error: no such thing' >&2; exit 3")
    rest = [shop.source(f"{n}.cpp") for n in "abcdef"]
    costs = {bad: Unit("bad.cpp", 100, 10), **{source: Unit(source, 1, 10) for source in rest}}

    with Pool(1, 1000, costs) as pool:
        _, failed, *others = hold(shop, pool, 7, [bad, *rest])
        assert finish(failed) == [3]
        assert finish(*others) == [launcher.NOT_STARTED] * 6 == [75] * 6

    assert shop.starts() == ["blocker.cpp", "bad.cpp"]
    assert failed.stdout is not None
    assert "no such thing" in failed.stdout.read(), "Ninja shows it too"
    assert pool.failure is not None
    assert pool.failure.source == bad
    assert pool.failure.returncode == 3
    assert pool.failure.command == (str(shop.compiler), "-c", bad, "-o", "x.o")
    assert "no such thing" in pool.failure.output
    (tmp_path / "build.log").write_text("")
    assert explain_failure("tiny", pool.failure, [], 1, tmp_path / "build.log").code == "AW501"


def test_d2_what_runs_when_another_fails_is_finished(shop: Workshop) -> None:
    gate = shop.folder / "go"
    slow = shop.source("slow.cpp", f"while [ ! -e {gate} ]; do sleep 0.02; done; touch {shop.folder}/slow.o")
    bad = shop.source("bad.cpp", "exit 1")
    with Pool(2, 1000, {s: Unit(s, 1, 10) for s in (slow, bad)}) as pool:
        running = shop.start(pool.address, slow)
        wait_for(lambda: pool.running == (slow,))
        assert finish(shop.start(pool.address, bad)) == [1]
        assert finish(shop.start(pool.address, slow)) == [75]
        gate.touch()
        assert finish(running) == [0]

    assert (shop.folder / "slow.o").exists()
    assert [measured.source for measured in pool.measured] == [slow]
    assert pool.failure is not None
    assert pool.failure.source == bad


def test_only_the_first_failure_is_kept(shop: Workshop) -> None:
    gate = shop.folder / "go"
    late = shop.source("late.cpp", f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 9")
    first = shop.source("first.cpp", "exit 1")
    with Pool(2, 10_000, {}) as pool:
        second = shop.start(pool.address, late)
        wait_for(lambda: shop.starts() == ["late.cpp"])
        finish(shop.start(pool.address, first))
        gate.touch()
        assert finish(second) == [9]

    assert pool.failure is not None
    assert pool.failure.source == first


def test_d1_a_death_by_signal_is_explained(shop: Workshop, tmp_path: Path) -> None:
    source = shop.source("huge.cu", "kill -9 $$")
    with Pool(1, 1000, {}) as pool:
        assert finish(shop.start(pool.address, source)) == [128 + signal.SIGKILL]

    assert pool.failure is not None
    assert pool.failure.returncode == -signal.SIGKILL
    (tmp_path / "build.log").write_text("")
    error = explain_failure("flash_mla", pool.failure, [], 1, tmp_path / "build.log")
    assert error.code == "AW502"
    assert "SIGKILL" in error.found
    assert "huge.cu" in error.found


def test_d2_a_killed_launcher_gives_its_turn_back(shop: Workshop) -> None:
    stuck = shop.source("stuck.cpp", "sleep 60")
    other = shop.source("other.cpp", "true")
    with Pool(1, 1000, {}) as pool:
        first = shop.start(pool.address, stuck)
        wait_for(lambda: shop.starts() == ["stuck.cpp"])
        second = shop.start(pool.address, other)
        os.killpg(first.pid, signal.SIGKILL)

        assert finish(second) == [0]
        wait_for(lambda: pool.running == ())


def test_d2_a_launcher_that_is_killed_while_it_waits_does_not_keep_its_turn(shop: Workshop) -> None:
    sources = [shop.source(f"{name}.cpp", "true") for name in ("doomed", "other")]
    costs = {sources[0]: Unit("doomed", 50, 10), sources[1]: Unit("other", 1, 10)}
    gate = shop.folder / "go"
    blocker = shop.source("blocker.cpp", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    with Pool(1, 1000, costs) as pool:
        first = shop.start(pool.address, blocker)
        wait_for(lambda: pool.running)
        doomed, other = (shop.start(pool.address, source) for source in sources)
        wait_for(lambda: len(pool._waiting) == 2)
        os.killpg(doomed.pid, signal.SIGKILL)
        doomed.wait()
        gate.touch()

        assert finish(first, other) == [0, 0]
        wait_for(lambda: pool.running == ())
        assert pool.failure is None


def test_d2_a_pool_that_is_left_tells_those_who_wait(shop: Workshop) -> None:
    gate = shop.folder / "go"
    blocker = shop.source("blocker.cpp", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    with Pool(1, 1000, {}) as pool:
        first = shop.start(pool.address, blocker)
        wait_for(lambda: pool.running)
        waiting = shop.start(pool.address, shop.source("a.cpp", "true"))
        wait_for(lambda: len(pool._waiting) == 1)
    assert finish(waiting) == [75]
    gate.touch()
    assert finish(first) == [0], "the object is good even when nobody waits for the report"
    assert not Path(pool.address).exists()


def test_a_pool_that_is_gone_means_not_started(shop: Workshop) -> None:
    process = shop.start("/nowhere/pool", shop.source("a.cpp", "true"))
    assert finish(process) == [75]
    assert shop.starts() == []


def test_without_a_pool_the_compiler_is_simply_run(shop: Workshop) -> None:
    process = shop.start(None, shop.source("a.cpp", "echo hello; exit 7"))
    assert finish(process) == [7]
    assert process.stdout is not None
    assert process.stdout.read() == "hello\n"


def test_time_and_memory_of_each_unit_are_measured(shop: Workshop, tmp_path: Path) -> None:
    seen: list[Measured] = []
    use = f"{sys.executable} -S -c 'x = bytearray(150_000_000); import time; time.sleep(0.7)'"
    hit = 'echo direct_cache_hit >"$CCACHE_STATSLOG"'  # what ccache writes there
    large, small = shop.source("tree/large.cpp", use), shop.source("tree/small.cpp", hit)
    with Pool(1, 4000, {}, seen.append) as pool:
        finish(shop.start(pool.address, large))
        finish(shop.start(pool.address, small))

    by_name = {Path(measured.source).name: measured for measured in seen}
    assert by_name["large.cpp"].mib >= 140
    assert 0.7 <= by_name["large.cpp"].seconds < 20
    assert not by_name["large.cpp"].cached
    assert by_name["small.cpp"].mib < 100
    assert by_name["small.cpp"].cached

    remember_costs(tmp_path, tmp_path / "tree", seen)
    text = (tmp_path / "units.json").read_text()
    assert '"large.cpp"' in text
    assert '"small.cpp"' not in text  # answered by the cache: says nothing about compiling


def test_a_real_ccache_tells_whether_it_answered(shop: Workshop, gcc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ccache = shutil.which("ccache")
    if ccache is None:
        pytest.skip("no ccache on PATH")
    monkeypatch.setenv("CCACHE_DIR", str(shop.folder / "ccache"))
    source = shop.source("a.c", "int answer(void) { return 42; }")
    with Pool(1, 4000, {}) as pool:
        monkeypatch.setenv("ARCHWRIGHT_POOL", pool.address)
        for name in ("one.o", "two.o"):
            command = [*LAUNCHER, ccache, gcc, "-c", source, "-o", str(shop.folder / name)]
            subprocess.run(command, check=True, timeout=30)
        wait_for(lambda: len(pool.measured) == 2)
        assert [measured.cached for measured in pool.measured] == [False, True]


def test_the_launcher_starts_fast(shop: Workshop) -> None:
    """It stands before every compile: it must not import the tool."""
    result = subprocess.run(
        [*LAUNCHER[:-1], "-X", "importtime", *LAUNCHER[-1:], "true"], capture_output=True, text=True
    )
    assert result.returncode == 0
    for slow in ("archwright", "typer", "rich", "pathlib", "importlib.metadata"):
        assert f" {slow}\n" not in result.stderr
