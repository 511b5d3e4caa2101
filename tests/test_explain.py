"""What a person reads after a failed build."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from archwright.errors import ArchwrightError, fail
from archwright.explain import explain_failure
from archwright.pool import Failure

COMMAND = ["python", "-m", "pip", "wheel", "csrc/tiny"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "build.log"
    path.write_text("nothing special\n")
    return path


def explain(log: Path, failure: Failure | None = None, text: str | None = None) -> ArchwrightError:
    if text is not None:
        log.write_text(text)
    return explain_failure("tiny", failure, COMMAND, 1, log)


def compile_failure(returncode: int, output: str = "") -> Failure:
    return Failure("/src/a.cu", ("nvcc", "-c", "/src/a.cu", "-DNAME=a b"), returncode, output, 7000)


def test_a_compile_error_shows_the_command_and_the_message(log: Path) -> None:
    noise = "ptxas info    : Used 40 registers\n" * 300
    output = f'{noise}a.cu(3): error: identifier "foo" is undefined\n\n1 error detected\n'

    error = explain(log, compile_failure(2, output))

    assert error.code == "AW501"
    assert "/src/a.cu" in error.found
    assert "status 2" in error.found
    assert "nvcc -c /src/a.cu '-DNAME=a b'" in error.detail, "it can be pasted into a shell"
    assert 'identifier "foo" is undefined' in error.detail
    assert "ptxas info" not in error.detail
    assert len(error.detail.splitlines()) < 60
    assert str(log) in error.fix


@pytest.mark.parametrize("returncode", [-signal.SIGKILL, 128 + signal.SIGKILL])
def test_d1_a_killed_compiler_is_explained_by_memory(returncode: int, log: Path) -> None:
    error = explain(log, compile_failure(returncode))

    assert error.code == "AW502"
    assert "SIGKILL" in error.found
    assert "7000 MiB" in error.found
    assert "memory" in error.why
    assert "--jobs 1" in error.fix


@pytest.mark.parametrize(
    "output",
    [
        "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n",
        "sh: line 1: 4711 Killed                  cicc --c++17 a.cpp1.ii\nKilled\n",
        "Killed\n",
    ],
    ids=["gcc", "nvcc", "shell", "bare"],
)
def test_d1_a_killed_part_of_the_compiler_is_explained_too(output: str, log: Path) -> None:
    """The driver lives and ends with 1: only its words tell."""
    error = explain(log, compile_failure(1, output))

    assert error.code == "AW502"
    assert "SIGKILL" in error.found
    assert "memory" in error.why


@pytest.mark.parametrize(
    ("returncode", "output"),
    [
        (-signal.SIGSEGV, ""),
        (1, "nvcc error   : 'ptxas' died due to signal 11 (Invalid memory reference)\n"),
    ],
)
def test_a_compiler_that_crashed_is_told_apart_from_one_that_was_killed(
    returncode: int, output: str, log: Path
) -> None:
    error = explain(log, compile_failure(returncode, output))

    assert error.code == "AW502"
    assert "SIGSEGV" in error.found
    assert "crashed" in error.why


@pytest.mark.parametrize(
    "output",
    [
        "a.cu(7): error: cannot use variable 'was_killed_12'\n",
        "a.cpp:9:1: note: // the process gets killed by 9 lives\na.cpp:9:2: error: expected ';'\n",
    ],
)
def test_a_source_that_talks_about_killing_is_an_ordinary_error(output: str, log: Path) -> None:
    assert explain(log, compile_failure(1, output)).code == "AW501"


def test_c5_a_full_disk_is_named(log: Path) -> None:
    output = "/tmp/cc1.s: fatal error: error writing to /tmp/cc1.s: No space left on device\n"

    in_compile = explain(log, compile_failure(1, output))
    elsewhere = explain(log, None, f"ninja: building\n{output}")

    assert in_compile.code == elsewhere.code == "AW308"
    assert "tiny" in in_compile.found
    assert "TMPDIR" in in_compile.fix


def test_an_error_of_ours_inside_the_build_is_passed_on_whole(log: Path) -> None:
    inner = fail(
        "AW305", found="nvcc 12.4.1", needed="nvcc 12.8 or newer: sm_100a", why="too old", fix="lock a newer one"
    )
    indented = "".join(f"  {line}\n" for line in str(inner).splitlines())

    error = explain(log, None, f"  Running command\n{indented}  error: subprocess-exited-with-error\n")

    assert (error.code, error.found, error.needed, error.why, error.fix) == (
        *("AW305", "nvcc 12.4.1", "nvcc 12.8 or newer: sm_100a", "too old", "lock a newer one"),
    )


def test_another_failing_step_shows_its_log(log: Path) -> None:
    lines = "\n".join(f"step {i}" for i in range(500))
    text = f"{lines}\n/usr/bin/ld: cannot find -lcuda: No such file\ncollect2: error: ld returned 1 exit status\n"

    error = explain(log, None, text)

    assert error.code == "AW501"
    assert "cannot find -lcuda" in error.detail
    assert "step 3\n" not in error.detail
    assert "pip wheel csrc/tiny" in error.found


def test_a_log_without_any_error_shows_its_end(log: Path) -> None:
    error = explain(log, None, "\n".join(f"step {i}" for i in range(500)))

    assert error.detail.splitlines()[-1] == "step 499"
    assert len(error.detail.splitlines()) <= 50


def test_a_log_that_is_no_text_is_read_all_the_same(log: Path) -> None:
    log.write_bytes(b"\xff\xfe error: \x80\n")
    assert explain(log).code == "AW501"


def test_every_problem_that_the_gates_found_is_shown(log: Path) -> None:
    """pip indents what the backend printed, and goes on with its own words."""
    parts = {"found": "a.whl: one (and 2 more)", "needed": "n", "why": "w", "fix": "f"}
    error = fail("AW412", **parts, detail="AW412 one\nAW412 two\nAW418 three")
    indented = "".join(f"  {line}\n" for line in str(error).splitlines())
    found = explain(log, text=f"  *** Making wheel...\n{indented}  error: subprocess-exited-with-error\n")

    assert (found.code, found.found) == ("AW412", parts["found"])
    assert found.detail.splitlines() == ["AW412 one", "AW412 two", "AW418 three"]
