"""The job pool with the real launcher in real processes (cases D1 and D2); only the compiler is a stand-in."""

from __future__ import annotations

import os
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
from archwright.pool import Pool

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
            cwd=self.folder,
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


def test_d1_a_large_unit_does_not_starve_behind_small_ones(shop: Workshop) -> None:
    """Each small one fits beside those that run, but with any of them the large one has no room."""
    gate = shop.folder / "go"
    held = shop.source("held.cpp", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    large = shop.source("large.cpp", "true")
    small = [shop.source(f"{name}.cpp", "true") for name in "abcdef"]
    costs = {held: Unit(held, 50, 300), large: Unit(large, 100, 900), **{s: Unit(s, 50, 300) for s in small}}

    with Pool(3, 1000, costs) as pool:
        first = shop.start(pool.address, held)
        wait_for(lambda: pool.running == (held,))
        second = shop.start(pool.address, large)
        wait_for(lambda: len(pool._waiting) == 1)
        others = [shop.start(pool.address, source) for source in small]
        wait_for(lambda: len(pool._waiting) == 7)
        gate.touch()
        assert set(finish(first, second, *others)) == {0}

    assert shop.starts()[:2] == ["held.cpp", "large.cpp"]


def test_d1_a_unit_that_takes_longer_than_expected_lets_nobody_go_ahead(shop: Workshop) -> None:
    gate = shop.folder / "go"
    held = shop.source("held.cpp", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    large, small = shop.source("large.cpp", "true"), shop.source("small.cpp", "true")
    costs = {held: Unit(held, 0.001, 300), large: Unit(large, 100, 900), small: Unit(small, 0.01, 300)}

    with Pool(3, 1000, costs) as pool:
        first = shop.start(pool.address, held)
        wait_for(lambda: shop.starts() == ["held.cpp"])
        second = shop.start(pool.address, large)
        wait_for(lambda: len(pool._waiting) == 1)
        third = shop.start(pool.address, small)
        wait_for(lambda: len(pool._waiting) == 2)
        gate.touch()
        assert set(finish(first, second, third)) == {0}

    assert shop.starts() == ["held.cpp", "large.cpp", "small.cpp"]


def test_what_does_not_delay_the_large_unit_runs_before_it(shop: Workshop) -> None:
    """Expected to end before there is room for it, or small enough to stay beside it."""
    gate = shop.folder / "go"
    wait = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    costs = {
        shop.source("held.cpp", wait): Unit("held", 50, 300),
        shop.source("large.cpp", wait): Unit("large", 1000, 900),
        shop.source("long.cpp", wait): Unit("long", 500, 200),  # would keep the large one out
        shop.source("beside.cpp", wait): Unit("beside", 400, 100),
        shop.source("quick.cpp", wait): Unit("quick", 5, 600),
    }
    held, *rest = costs

    with Pool(3, 1000, costs) as pool:
        processes = [shop.start(pool.address, held)]
        wait_for(lambda: pool.running == ("held",))
        for count, source in enumerate(rest[:2], 1):
            processes.append(shop.start(pool.address, source))
            wait_for(lambda count=count: len(pool._waiting) == count)  # type: ignore[misc]
        processes += [shop.start(pool.address, source) for source in rest[2:]]
        wait_for(lambda: len(pool.running) == 3)
        assert set(pool.running) == {"held", "beside", "quick"}
        gate.touch()
        assert set(finish(*processes)) == {0}

    assert shop.starts().index("large.cpp") == 3


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
    news: list[str] = []
    with Pool(2, 1000, {s: Unit(s, 1, 10) for s in (slow, bad)}, on_news=news.append) as pool:
        running = shop.start(pool.address, slow)
        wait_for(lambda: pool.running == (slow,))
        assert finish(shop.start(pool.address, bad)) == [1]
        assert finish(shop.start(pool.address, slow)) == [75]
        gate.touch()
        assert finish(running) == [0]

    assert news == ["bad.cpp failed; letting the 1 running compile finish"]
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


DIES_ONCE = "if [ ! -e $source.died ]; then touch $source.died; kill -9 $$; fi"


def test_d1_a_unit_that_was_killed_for_memory_runs_once_more_alone(shop: Workshop) -> None:
    gate = shop.folder / "go"
    scripts = {
        "killed": f"{DIES_ONCE}; sleep 0.4",
        "beside": f"while [ ! -e {gate} ]; do sleep 0.02; done",
        "later": "true",
    }
    costs = {shop.source(f"{n}.cpp", text): Unit(n, 9 - i, 10) for i, (n, text) in enumerate(scripts.items())}
    news: list[str] = []

    with Pool(2, 1000, costs, on_news=news.append) as pool:
        processes = hold(shop, pool, 3, list(costs))
        wait_for(lambda: pool.retried)
        gate.touch()
        assert set(finish(*processes)) == {0}

    assert sorted(shop.events()[2:4]) == [("start", "beside.cpp"), ("start", "killed.cpp")]
    assert shop.events()[4:] == [
        ("end", "beside.cpp"),
        *(("start", "killed.cpp"), ("end", "killed.cpp")),
        *(("start", "later.cpp"), ("end", "later.cpp")),
    ]
    assert pool.failure is None
    assert pool.retried == ["killed"]
    assert len(news) == 1
    assert "killed.cpp was killed" in news[0]
    assert "alone" in news[0]
    assert sorted(Path(m.source).name for m in pool.measured)[1:] == ["blocker.cpp", "killed.cpp", "later.cpp"]


@pytest.mark.parametrize(
    "words",
    [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "g++: internal compiler error: Killed (program cc1plus)",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    ],
)
def test_d1_a_killed_part_of_the_compiler_is_retried_too(words: str, shop: Workshop) -> None:
    source = shop.source("a.cu", f'if [ ! -e {shop.folder}/x ]; then touch {shop.folder}/x; echo "{words}"; exit 1; fi')
    with Pool(2, 1000, {}) as pool:
        process = shop.start(pool.address, source)
        assert finish(process) == [0]
    assert pool.retried == [source]
    assert process.stdout is not None
    assert process.stdout.read() == "", "the words of the first attempt would only mislead"


@pytest.mark.parametrize("does", ["kill -SEGV $$", "echo error: bad; exit 1", "exit 255"])
def test_what_was_not_killed_for_memory_is_not_retried(does: str, shop: Workshop) -> None:
    with Pool(2, 1000, {}) as pool:
        assert finish(shop.start(pool.address, shop.source("a.cpp", does))) != [0]
    assert shop.starts() == ["a.cpp"]
    assert pool.failure is not None
    assert not pool.failure.retried
    assert pool.retried == []


def test_d1_after_another_failure_nothing_is_retried(shop: Workshop) -> None:
    gate = shop.folder / "go"
    killed = shop.source("killed.cpp", f"while [ ! -e {gate} ]; do sleep 0.02; done; kill -9 $$")
    bad = shop.source("bad.cpp", "exit 1")
    with Pool(2, 10_000, {}) as pool:
        late = shop.start(pool.address, killed)
        wait_for(lambda: shop.starts() == ["killed.cpp"])
        finish(shop.start(pool.address, bad))
        gate.touch()
        assert finish(late) == [137]
    assert shop.starts() == ["killed.cpp", "bad.cpp"]
    assert pool.retried == []
    assert pool.failure is not None
    assert pool.failure.source == bad


def test_d2_a_launcher_killed_while_it_waits_to_try_again_gives_its_turn_back(shop: Workshop) -> None:
    gate = shop.folder / "go"
    blocker = shop.source("blocker.cpp", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    with Pool(2, 10_000, {}) as pool:
        first = shop.start(pool.address, blocker)
        wait_for(lambda: pool.running)
        doomed = shop.start(pool.address, shop.source("doomed.cpp", DIES_ONCE))
        wait_for(lambda: len(pool._waiting) == 1)
        os.killpg(doomed.pid, signal.SIGKILL)
        doomed.wait()
        other = shop.start(pool.address, shop.source("other.cpp", "true"))
        gate.touch()
        assert finish(first, other) == [0, 0]
        wait_for(lambda: pool.running == ())


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
    assert "retried alone" in error.found
    assert shop.starts() == ["huge.cu", "huge.cu"], "once more, and not again and again"


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
