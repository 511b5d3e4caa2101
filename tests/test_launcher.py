"""The compiler launcher in real processes: what it measures, keeps and passes on (case D1)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright import launcher
from archwright.pool import Pool

LAUNCHER = [sys.executable, "-I", "-S", launcher.__file__]
Compile = Callable[..., "subprocess.CompletedProcess[bytes]"]


def launch(command: list[str], pool: str | None, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run `command` behind the launcher in `folder`."""
    environment = {name: value for name, value in os.environ.items() if name != "ARCHWRIGHT_POOL"}
    if pool is not None:
        environment["ARCHWRIGHT_POOL"] = pool
    return subprocess.run([*LAUNCHER, *command], env=environment, cwd=folder, capture_output=True, timeout=60)


@pytest.fixture
def compile_with(tmp_path: Path, script: Callable[[str, str], Path]) -> Compile:
    """Compile a.cu into x.o (or as `words` say) with a stand-in for the compiler that does what `text` says."""

    def call(
        text: str, pool: str | None, words: tuple[str, ...] = ("-c", "a.cu", "-o", "x.o")
    ) -> subprocess.CompletedProcess[bytes]:
        return launch([str(script("compiler", text)), *words], pool, tmp_path)

    return call


def test_a_pool_that_is_gone_means_not_started(compile_with: Compile, tmp_path: Path) -> None:
    assert compile_with("touch started", "/nowhere/pool").returncode == 75
    assert not (tmp_path / "started").exists()


def test_without_a_pool_the_compiler_is_simply_run(compile_with: Compile, tmp_path: Path) -> None:
    result = compile_with("echo hello; exit 7", None)
    assert (result.returncode, result.stdout) == (7, b"hello\n")
    assert not (tmp_path / "x.o.log").exists()


def test_time_and_memory_of_each_unit_are_measured(compile_with: Compile) -> None:
    use = f"{sys.executable} -S -c 'x = bytearray(150_000_000); import time; time.sleep(0.7)'"
    with Pool(1, 4000, {}) as pool:
        compile_with(use, pool.address)
        compile_with('echo direct_cache_hit >"$CCACHE_STATSLOG"', pool.address)  # what ccache writes there

        compile_with("echo worker.py: remembered", pool.address)  # what the worker of a pack says

    large, small, remembered = pool.measured
    assert large.mib >= 140
    assert 0.7 <= large.seconds < 20
    assert not large.cached
    assert small.mib < 100
    assert small.cached
    assert remembered.cached


def test_d1_the_peak_of_a_compile_too_short_for_a_sample_is_measured(compile_with: Compile) -> None:
    with Pool(1, 4000, {}) as pool:
        compile_with(f"{sys.executable} -I -S -c 'x = bytearray(100_000_000)'", pool.address)
    assert pool.measured[0].mib >= 95


def test_d1_memory_is_that_of_the_whole_process_tree(compile_with: Compile) -> None:
    """A driver with two large children at once: the largest process alone says half of it."""
    use = f"{sys.executable} -S -c 'x = bytearray(100_000_000); import time; time.sleep(1.5)'"
    with Pool(1, 4000, {}) as pool:
        compile_with(f"( {use} & {use} & wait )", pool.address)
    assert 190 <= pool.measured[0].mib < 300


def test_what_a_compile_printed_is_kept_beside_the_object(compile_with: Compile, tmp_path: Path) -> None:
    log = tmp_path / "x.o.log"
    with Pool(1, 1000, {}) as pool:
        said = compile_with(r"echo 'ptxas info : 8 bytes spill stores' >&2; printf 'caf\351\n'", pool.address)
        assert said.stdout == log.read_bytes() == b"ptxas info : 8 bytes spill stores\ncaf\xe9\n"

        compile_with("true", pool.address)
        assert log.read_bytes() == b"", "nothing of an earlier compile"

        log.write_text("of the object that is there")
        assert compile_with("echo error; exit 1", pool.address).returncode == 1
        assert log.read_text() == "of the object that is there"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "x.o.log"], "no half-written file"


@pytest.mark.parametrize("words", [("-E", "a.cu", "-o", "x.o"), ("-c", "a.cu"), ("-c", "a.cu", "-o")])
def test_what_makes_no_object_keeps_no_log(words: tuple[str, ...], compile_with: Compile, tmp_path: Path) -> None:
    with Pool(1, 4000, {}) as pool:
        result = compile_with("echo hello", pool.address, words)
    assert (result.returncode, result.stdout) == (0, b"hello\n")
    assert list(tmp_path.glob("*.log*")) == []


def test_a_log_that_cannot_be_written_is_not_that_of_another_compile(compile_with: Compile, tmp_path: Path) -> None:
    """A folder in the place of the part file stands for a full disk."""
    (tmp_path / "x.o.log").write_text("old")
    with Pool(1, 4000, {}) as pool:
        result = compile_with('mkdir "x.o.log.$PPID"; echo new', pool.address)
    assert (result.returncode, result.stdout) == (0, b"new\n"), "the object is good"
    assert not (tmp_path / "x.o.log").exists()


def test_a_real_ccache_answers_with_what_the_compiler_said(
    gcc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ccache = shutil.which("ccache")
    if ccache is None:
        pytest.skip("no ccache on PATH")
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    (tmp_path / "a.c").write_text("int answer(void) { int unused; return 42; }")
    with Pool(1, 4000, {}) as pool:
        for name in ("one.o", "two.o"):
            assert launch([ccache, gcc, "-Wall", "-c", "a.c", "-o", name], pool.address, tmp_path).returncode == 0
    one, two = ((tmp_path / f"{name}.o.log").read_text() for name in ("one", "two"))
    assert "unused variable" in one
    assert one == two
    assert [measured.cached for measured in pool.measured] == [False, True]


def test_the_launcher_starts_fast() -> None:
    """It stands before every compile: it must not import the tool."""
    result = subprocess.run(
        [*LAUNCHER[:-1], "-X", "importtime", *LAUNCHER[-1:], "true"], capture_output=True, text=True
    )
    assert result.returncode == 0
    for slow in ("archwright", "click", "rich", "pathlib", "importlib.metadata"):
        assert f" {slow}\n" not in result.stderr
