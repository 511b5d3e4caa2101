"""Two builds in different surroundings, with a stand-in for the toolchain's Python; the real one is in test_wheels.py.

The stand-in answers `python -m archwright fetch|env create|build` and packs what it sees of its surroundings.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import cli, interpreter, render, repro, surroundings
from archwright.components import Component
from archwright.environment import Environment
from archwright.errors import ArchwrightError, Exit
from archwright.repro import ReproResult, check_reproducible
from archwright.sources import fetch
from archwright.targets import target_table

SM100 = target_table().targets["sm100"]
WHEEL = "tiny-1.0+cu132.sm100-cp312-cp312-manylinux_2_39_x86_64.whl"

pytestmark = pytest.mark.usefixtures("pip_answers_at_once")

#: What the toolchain's Python of both environments does. `LEAKS` lists what of its surroundings gets into the wheel.
STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, subprocess, sys, time, zipfile
if sys.argv[1] != "-m":
    os.execv("{sys.executable}", ["{sys.executable}", *sys.argv[1:]])
words = sys.argv[3:]
trace = pathlib.Path(os.environ["TRACE"])
with trace.open("a") as file:
    file.write(json.dumps({{"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}}) + "\\n")
here = pathlib.Path(sys.argv[0]).parents[2]
if words[0] == "fetch":
    print(json.dumps([{{"component": words[1]}}]))
elif words[0] == "env":
    made = pathlib.Path(os.environ["ARCHWRIGHT_CACHE"]) / "envs" / "other"
    (made / "toolchain" / "bin").mkdir(parents=True)
    (made / "toolchain" / "bin" / "python").write_text(pathlib.Path(sys.argv[0]).read_text())
    (made / "toolchain" / "bin" / "python").chmod(0o755)
    record = json.loads((here / "env.json").read_text()) | {{"path": str(made), "toolchain": str(made / "toolchain")}}
    (made / "env.json").write_text(json.dumps(record))
    print(json.dumps(record))
elif os.environ.get("FAIL"):
    parts = dict(found="a.cu failed", needed="n", why="w", fix="f", detail="d", title="t", exit=5)
    print(json.dumps({{"error": dict(parts, code="AW501")}}))
    sys.exit(5)
elif os.environ.get("DIE"):
    sys.exit("Traceback: died")
else:
    if os.environ.get("HANG"):
        subprocess.Popen(["sleep", "100"], start_new_session=True)
        pathlib.Path(os.environ["HANG"]).write_text("now")
        time.sleep(100)
    option = lambda name: words[words.index(name) + 1]
    out = pathlib.Path(option("--out"))
    out.mkdir(parents=True)
    facts = {{
        "folder": os.getcwd(),
        "jobs": option("--jobs"),
        "clock": str(time.time() // 86400),
        "user": str(os.getuid()),
        "temporary": os.environ.get("TMPDIR", ""),
    }}
    leaks = os.environ.get("LEAKS", "").split()
    with zipfile.ZipFile(out / "{WHEEL}", "w") as archive:
        text = "".join(f"{{name}} {{facts[name]}}\\n" for name in leaks)
        archive.writestr(zipfile.ZipInfo("tiny/seen.txt"), "always\\n" + text)
    print(json.dumps({{"wheels": [{{"path": str(out / "{WHEEL}")}}]}}))
"""


@pytest.fixture
def trace(
    environment: Environment, tiny: Component, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The stand-in in the environment's toolchain; returns the file in which it notes how it was called."""
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    monkeypatch.setattr(repro, "project_root", lambda: tmp_path / "project")
    monkeypatch.setattr(repro, "require_space", lambda *words: None)
    monkeypatch.setattr(repro, "find_python", lambda named: interpreter.Interpreter(Path(named), "", Path(), True, ""))
    python = environment.toolchain / "bin" / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    (environment.path / "env.json").write_text(json.dumps(environment.as_dict()))
    return tmp_path / "trace"


Check = Callable[..., ReproResult]


@pytest.fixture
def check(trace: Path, tiny: Component, environment: Environment, gcc: str) -> Check:
    def call(cc: Path = Path(gcc), **options: object) -> ReproResult:
        real = replace(environment, cxx=Path(gcc), cc=cc)
        (environment.path / "env.json").write_text(json.dumps(real.as_dict()))
        return check_reproducible(SM100, tiny, SM100.gencodes, real, **options)  # type: ignore[arg-type]

    return call


def calls(trace: Path, *words: str) -> list[dict[str, object]]:
    every = [json.loads(line) for line in trace.read_text().splitlines()]
    return [call for call in every if tuple(call["words"][: len(words)]) == words]


def left_in(cache: Path) -> list[Path]:
    return list((cache / "repro").iterdir())


def test_builds_that_see_nothing_of_their_surroundings_are_identical(check: Check, cache: Path) -> None:
    result = check()

    assert result.identical
    assert result.first.sha256 == result.second.sha256
    assert result.error() is None
    assert left_in(cache) == [], "nothing is left"
    data = json.loads(json.dumps(result.as_dict(), default=str))
    assert data["identical"] is True
    assert data["kept"] is None
    assert data["first"]["path"] is None, "no path to a file that is gone"
    assert "error" not in data


def test_both_builds_are_what_a_user_would_run_and_compile_everything(check: Check, trace: Path) -> None:
    check()
    first, second = calls(trace, "build", "sm100", "tiny")
    for call in (first, second):
        assert {"--offline", "--json", "--no-compiler-cache"} <= set(call["words"])
        assert call["words"].count("--gencode") == len(SM100.gencodes)
        assert call["env"]["PYTHONPATH"] == f"{call['cwd']}/python"
        assert "SOURCE_DATE_EPOCH" not in call["env"], "the build takes it from the source"
    jobs = [call["words"][call["words"].index("--jobs") + 1] for call in (first, second)]
    assert jobs[0] == "1"
    assert int(jobs[1]) >= 2


def test_what_is_called_varied_is_different_in_the_builds(check: Check, trace: Path) -> None:
    result = check()

    first, second = (call["env"] for call in calls(trace, "build"))
    for name in ("ARCHWRIGHT_CACHE", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG"):
        assert first.get(name) != second[name], name
    folders = [call["cwd"] for call in calls(trace, "build")]
    assert len(folders[0]) != len(folders[1])
    varied = {variation.what for variation in result.varied}
    assert {"folder", "jobs", "cache and sources", "environment", "temporary folder", "home"} <= varied
    assert {"user name", "time zone", "umask"} <= varied
    assert all(variation.first != variation.second for variation in result.varied)
    assert not varied & {same.what for same in result.not_varied}
    assert {"machine", "tools"} <= {same.what for same in result.not_varied}


def test_the_second_environment_is_made_in_the_first_home(
    check: Check, trace: Path, tiny: Component, cache: Path
) -> None:
    fetch(tiny)
    check(offline=True)
    (call,) = calls(trace, "env", "create", "sm100")
    assert "--offline" in call["words"]
    assert call["env"].get("HOME") == os.environ.get("HOME"), "there the installer keeps its packages"
    assert Path(call["env"]["ARCHWRIGHT_CACHE"]).is_relative_to(cache / "repro")


@pytest.mark.parametrize("leak", ["folder", "jobs", "temporary"])
def test_aw421_names_what_leaked_and_keeps_both_wheels(
    leak: str, check: Check, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKS", leak)

    result = check()

    assert not result.identical
    (difference,) = result.differences
    assert (difference.member, difference.where) == ("tiny/seen.txt", "line 2")
    error = result.error()
    assert error is not None
    assert (error.code, error.exit) == ("AW421", Exit.CHECK_FAILED)
    assert "tiny/seen.txt: line 2" in error.detail
    assert str(result.kept) in error.fix
    assert result.kept is not None
    assert [path.name for path in result.kept.iterdir()] == ["wheels"]
    for rebuilt in (result.first, result.second):
        assert rebuilt.path is not None
        assert rebuilt.path.is_relative_to(result.kept)
        assert zipfile.is_zipfile(rebuilt.path)
    assert json.dumps(result.as_dict(), default=str).count("AW421") == 1


def test_a_user_that_leaks_is_noticed(check: Check, private_mounts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKS", "user")
    result = check()
    assert {"user id", "host name"} <= {variation.what for variation in result.varied}
    assert not result.identical


def test_a_clock_that_leaks_is_noticed(
    check: Check, private_mounts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKS", "clock")
    result = check()
    assert "clock" in {variation.what for variation in result.varied}
    assert not result.identical


def test_keep_leaves_copies_wheels_and_logs(check: Check) -> None:
    result = check(keep=True)
    assert result.identical
    assert result.kept is not None
    assert {path.name for path in result.kept.iterdir()} == {"1", "second", "wheels", "logs"}


def test_a_build_that_fails_fails_with_its_own_error_and_keeps_its_log(
    check: Check, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "1")
    news: list[str] = []
    with pytest.raises(ArchwrightError) as caught:
        check(news=news.append)
    assert (caught.value.code, caught.value.found, caught.value.detail) == ("AW501", "a.cu failed", "d")
    (kept,) = left_in(cache)
    assert {path.name for path in kept.iterdir()} == {"1", "second", "logs"}
    assert news[-1] == f"kept: {kept}"


def test_a_build_that_dies_without_a_word_is_aw501(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIE", "1")
    with pytest.raises(ArchwrightError) as caught:
        check()
    assert caught.value.code == "AW501"
    assert "Traceback: died" in caught.value.detail
    assert "build sm100 tiny" in caught.value.found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_d2_interrupted_nothing_is_left(
    number: signal.Signals, check: Check, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "hanging"
    monkeypatch.setenv("HANG", str(hanging))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    killer = subprocess.Popen(
        ["sh", "-c", f"while [ ! -s {hanging} ]; do sleep 0.05; done; kill -{number.value} {os.getpid()}"]
    )

    with pytest.raises(ArchwrightError) as caught:
        check()

    killer.wait()
    assert caught.value.code == "AW504"
    assert left_in(cache) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not _processes_below(tmp_path)


def _processes_below(folder: Path) -> list[str]:
    """Commands whose working folder lies below `folder`, or lay there before it was removed."""
    end, found = time.monotonic() + 5, ["not looked yet"]
    while found and time.monotonic() < end:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if str((process / "cwd").readlink()).startswith(f"{folder}/"):
                    found.append((process / "cmdline").read_text())
            except OSError:
                continue
    return found


def test_a_copy_is_laid_out_like_a_checkout_without_what_was_built(tmp_path: Path) -> None:
    copy = repro.copy_project(tmp_path / "copy")
    assert (copy / "python" / "archwright" / "repro.py").is_file()
    assert (copy / "csrc" / "deep_ep" / "component.toml").is_file()
    assert (copy / "envs" / "sm100" / "toolchain.lock").is_file()
    assert (copy / "pyproject.toml").is_file(), "so that objects stay in the copy"
    assert not (copy / "build").exists()
    assert not list(copy.rglob("__pycache__"))


def test_a_copy_of_an_installed_tool_keeps_its_objects_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pyproject.toml they would go to the cache, where an earlier build of the user's may lie."""
    (tmp_path / "_project" / "csrc").mkdir(parents=True)
    monkeypatch.setattr(repro, "project_root", lambda: tmp_path / "_project")
    copy = repro.copy_project(tmp_path / "copy")
    assert (copy / "csrc").is_dir()
    assert (copy / "pyproject.toml").is_file()


def test_the_copys_own_code_is_what_runs(tmp_path: Path) -> None:
    copy = repro.copy_project(tmp_path / "copy")
    command = [sys.executable, "-S", "-c", "import archwright; print(archwright.__file__)"]
    said = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(copy / "python")}, check=True, capture_output=True, text=True
    ).stdout
    assert Path(said.strip()).is_relative_to(copy)


def test_no_unshare_is_said_and_not_claimed(
    check: Check, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = script("unshare", "exit 1").parent
    monkeypatch.setenv("PATH", f"{refusing}{os.pathsep}{os.environ['PATH']}")

    result = check()

    reasons = {same.what: same.why for same in result.not_varied}
    assert "permits no `unshare`" in reasons["user id"]
    assert "permits no `unshare`" in reasons["host name"]
    assert "clock" in reasons
    assert result.identical


def test_a_clock_that_does_not_compile_is_said_and_not_claimed(
    check: Check, environment: Environment, tmp_path: Path
) -> None:
    result = check(cc=tmp_path / "nonesuch")
    assert {"clock": "other_clock.c does not compile here"}.items() <= {
        s.what: s.why for s in result.not_varied
    }.items()


CLOCK = """\
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <sys/time.h>
int main(void) {
    struct timespec a, b, c; struct timeval v; time_t t;
    clock_gettime(CLOCK_REALTIME, &a); gettimeofday(&v, 0);
    timespec_get(&b, TIME_UTC); clock_gettime(CLOCK_MONOTONIC, &c);
    printf("%ld %ld %ld %ld %ld\\n", a.tv_sec, v.tv_sec, b.tv_sec, time(&t), c.tv_sec);
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER; pthread_cond_t k = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&m); a.tv_sec += 1;
    return pthread_cond_timedwait(&k, &m, &a) == ETIMEDOUT ? 0 : 1;
}
"""


def test_the_other_clock_is_ahead_and_its_deadlines_come(tmp_path: Path, gcc: str) -> None:
    source, program = tmp_path / "t.c", tmp_path / "t"
    source.write_text(CLOCK)
    subprocess.run([gcc, "-pthread", "-o", program, source], check=True)
    overlay = surroundings._clock_overlay(tmp_path, Path(gcc))
    assert overlay is not None
    library = (overlay / "ld.so.preload").read_text().split()[-1]

    said = subprocess.run(
        [program], env={"LD_PRELOAD": library}, check=True, capture_output=True, text=True, timeout=20
    ).stdout

    *real, monotonic = (int(word) for word in said.split())
    for seconds in real:
        assert abs(seconds - time.time() - surroundings._SHIFT) < 60
    assert abs(monotonic - time.monotonic()) < 60


@pytest.mark.parametrize(
    ("one", "two", "differs"), [("2026-12-31", "2027-01-01", False), ("2026-12-31", "2028-02-05", True)]
)
def test_a_time_zone_alone_is_no_other_clock(one: str, two: str, differs: bool) -> None:
    assert surroundings._differs("clock", one, two) is differs


def test_the_report_has_both_digests_and_both_lists(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    result = check()
    render.show_repro(result)
    out = capsys.readouterr().out
    assert out.count(result.first.sha256) == 2
    assert "identical" in out
    for words in ("varied:", "not varied:", "folder:", "machine:"):
        assert words in out


def test_a_component_that_does_not_exist_is_wrong_usage(quiet: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["repro", "sm100", "nonesuch", "--json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "AW103"


@pytest.mark.parametrize(("leak", "status"), [("", Exit.DONE), ("folder", Exit.CHECK_FAILED)])
def test_the_command_prints_one_json_document_and_its_status_is_the_verdict(
    leak: str,
    status: Exit,
    check: Check,
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LEAKS", leak)
    result = check()
    monkeypatch.setattr("archwright.environment.create_environment", lambda *words, **options: environment)
    monkeypatch.setattr(repro, "check_reproducible", lambda *words, **options: result)

    assert cli.main(["repro", "sm100", "engine", "--json"]) == status
    data = json.loads(capsys.readouterr().out)
    assert data["identical"] is (status is Exit.DONE)
    assert data.get("error", {}).get("code") == ("AW421" if leak else None)

    assert cli.main(["repro", "sm100", "engine"]) == status
    out, err = capsys.readouterr()
    assert result.second.sha256 in out
    assert ("AW421" in err) is bool(leak)
    assert ("tiny/seen.txt: line 2" in err) is bool(leak)
