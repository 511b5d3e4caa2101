"""One build of a cell at a time, between real processes (cases D2 and D3)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archwright.cellock import HELD, cell_lock
from archwright.errors import ArchwrightError, Exit

#: Takes the lock of argv[1], says so, and keeps it until a line arrives.
HOLDER = """
import sys
from pathlib import Path
from archwright.cellock import cell_lock
with cell_lock(Path(sys.argv[1]), on_wait=lambda who: print(who, flush=True)):
    print("held", flush=True)
    sys.stdin.readline()
"""

Start = Callable[[Path], "subprocess.Popen[str]"]

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(folder: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "build" / "sm100" / "deep_ep"


def test_d3_the_second_build_waits_and_says_who_holds_it(folder: Path, start: Start) -> None:
    first = start(folder)
    assert line(first) == "held"
    second = start(folder)

    waiting = line(second)
    assert waiting.startswith("waiting: ")
    assert str(folder) in waiting
    assert f"process {first.pid} since " in waiting

    first.communicate("done\n")
    assert line(second) == "held"


def test_d3_without_waiting_it_is_aw503_and_names_the_holder(folder: Path, start: Start) -> None:
    first = start(folder)
    assert line(first) == "held"

    with pytest.raises(ArchwrightError) as caught, cell_lock(folder, wait=False):
        pytest.fail("two builds in one folder")

    assert caught.value.code == "AW503"
    assert caught.value.exit is Exit.BUILD_FAILED
    assert f"process {first.pid}" in caught.value.found
    assert str(folder) in caught.value.found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_d2_a_holder_that_dies_leaves_no_lock(number: signal.Signals, folder: Path, start: Start) -> None:
    first = start(folder)
    assert line(first) == "held"
    first.send_signal(number)
    first.wait()

    entered = False
    with cell_lock(folder, wait=False):
        entered = True
    assert entered


def test_another_cell_is_not_locked(folder: Path, start: Start) -> None:
    assert line(start(folder)) == "held"

    entered = []
    for other in (folder.with_name("deep_gemm"), folder.parents[1] / "sm90" / "deep_ep", folder.with_name("deep_ep-2")):
        with cell_lock(other, wait=False):
            entered.append(other)
    assert len(entered) == 3


def test_it_can_be_taken_again_afterwards_and_names_nobody(folder: Path) -> None:
    for _ in range(2):
        with cell_lock(folder, wait=False):
            assert [p.name for p in folder.parent.iterdir() if "holder" in p.name]
        assert not [p.name for p in folder.parent.iterdir() if "holder" in p.name]
    assert not folder.exists(), "the lock does not make the build folder itself"


def test_it_is_released_when_the_build_fails(folder: Path) -> None:
    with pytest.raises(RuntimeError), cell_lock(folder):
        raise RuntimeError("a compile failed")
    entered = False
    with cell_lock(folder, wait=False):
        entered = True
    assert entered


def test_the_children_of_the_one_that_holds_the_locks_do_not_wait(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line(start(folder)) == "held"
    monkeypatch.setenv(HELD, "1")
    entered = False
    with cell_lock(folder, wait=False):
        entered = True
    assert entered
