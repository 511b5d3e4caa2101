"""Repairs: what is offered on this machine, who has to agree, and what is run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright import cli, repairs
from archwright.findings import Finding, Level, Repair
from archwright.repairs import Outcome, apply_repairs, from_pyenv, from_system, in_shell, repaired, with_tool

Script = Callable[[str, str], Path]


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PATH holds nothing but the folder of stand-ins."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def apt(only: Path, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt that knows `ccache` and `libdw-dev`; installing puts a program of that name on PATH."""
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "mirror_dists_stable_main_Packages").touch()
    monkeypatch.setattr(repairs, "_APT_LISTS", lists)
    script("apt-cache", 'case "$3" in ccache|libdw-dev) echo "Package: $3" ;; *) echo "E: none" >&2; exit 100 ;; esac')
    install = f"/bin/cp {script('installed', 'exit 0')} {only}/$3; echo installing $3"
    script("apt-get", f'echo "$@" >>{tmp_path}/log\ncase "$1" in install) {install} ;; esac')
    return tmp_path / "log"


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def lines(steps: tuple[Repair, ...]) -> list[str]:
    return [str(step) for step in steps]


def yes(finding: Finding, repair: Repair) -> bool:
    return True


def broken(*steps: Repair, check: str = "x", level: Level = Level.FAIL) -> Finding:
    return Finding(check, level, "f", "n", "w", "x", "AW308", steps)


def test_what_apt_knows_is_offered(apt: Path, as_root: None) -> None:
    assert lines(from_system(("ccache",))) == ["apt-get install -y ccache"]
    assert lines(from_system(("unknown",))) == []
    assert lines(from_system(("unknown", "ccache"))) == [], "a set is known when all of it is"
    assert lines(from_system(("unknown",), ("libdw-dev",))) == ["apt-get install -y libdw-dev"]


def test_without_package_lists_they_are_fetched_first(apt: Path, tmp_path: Path, as_root: None) -> None:
    (tmp_path / "lists" / "mirror_dists_stable_main_Packages").unlink()
    assert lines(from_system(("unknown",))) == ["apt-get update", "apt-get install -y unknown"]


def test_without_apt_nothing_is_offered(only: Path) -> None:
    assert from_system(("ccache",)) == ()


def test_the_real_apt_is_asked_without_a_network(no_network: list[str]) -> None:
    if shutil.which("apt-cache") is None or not any(repairs._APT_LISTS.glob("*_Packages*")):
        pytest.skip("no apt with package lists")
    program = "from archwright.repairs import from_system as f; print(f(('libdw-dev',)), f(('no-such-package-x',)))"
    answer = subprocess.run([*no_network, sys.executable, "-c", program], capture_output=True, text=True)
    assert "libdw-dev" in answer.stdout
    assert answer.stdout.rstrip().endswith("()")


def test_pyenv_is_offered_where_it_is(only: Path, script: Script) -> None:
    assert from_pyenv("3.12") == ()
    script("pyenv", "exit 0")
    assert lines(from_pyenv("3.12")) == ["pyenv install --skip-existing 3.12"]


def test_a_command_of_this_tool_is_one_that_runs() -> None:
    (repair,) = with_tool("--version")
    answer = subprocess.run(repair.command, capture_output=True, text=True)
    assert answer.stdout.startswith("archwright ")


def test_what_needs_root_is_printed_with_sudo_for_others(apt: Path, as_user: None) -> None:
    (repair,) = from_system(("ccache",))
    assert str(repair) == "sudo apt-get install -y ccache"
    assert not repair.can_run

    (step,) = apply_repairs([broken(repair)], yes)

    assert step.outcome is Outcome.PRINTED
    assert not apt.exists(), "nothing was run"


def test_words_are_quoted_and_never_reach_a_shell(tmp_path: Path, script: Script, only: Path) -> None:
    script("tool", f'for word; do echo "$word" >>{tmp_path}/words; done')
    hostile = "x; touch $(echo pwned) `id` '\"\n"
    repair = Repair(("tool", hostile, "--python=a b"))

    apply_repairs([broken(repair)], yes)

    assert (tmp_path / "words").read_text() == f"{hostile}\n--python=a b\n"
    assert not (tmp_path / "pwned").exists()
    echoed = subprocess.run(["/bin/sh", "-c", f"printf '%s\\n' {repair}"], capture_output=True, text=True).stdout
    assert echoed == f"tool\n{hostile}\n--python=a b\n", "what is printed can be typed"


def test_nobody_to_agree_means_nothing_is_run(apt: Path, as_root: None) -> None:
    steps = apply_repairs([broken(*from_system(("ccache",)))], None)
    assert [step.outcome for step in steps] == [Outcome.PRINTED]
    assert not apt.exists()


def test_a_line_for_the_shell_is_only_printed(as_root: None) -> None:
    (step,) = apply_repairs([broken(*in_shell("exit 3"))], yes)
    assert (step.outcome, step.was_run, str(step.repair)) == (Outcome.PRINTED, False, "exit 3")


def test_only_what_is_not_ok_is_repaired(apt: Path, as_root: None) -> None:
    repair = from_system(("ccache",))
    assert apply_repairs([broken(*repair, level=Level.OK), broken()], yes) == ()
    assert len(apply_repairs([broken(*repair, level=Level.NOTE)], yes)) == 1


def test_consent_is_asked_for_each_step(apt: Path, as_root: None) -> None:
    asked: list[str] = []

    def agrees(finding: Finding, repair: Repair) -> bool:
        asked.append(f"{finding.check}: {repair}")
        return "libdw" in str(repair)

    findings = [broken(*from_system(("ccache",)), check="a"), broken(*from_system(("libdw-dev",)), check="b")]
    steps = apply_repairs(findings, agrees)

    assert asked == ["a: apt-get install -y ccache", "b: apt-get install -y libdw-dev"]
    assert [step.outcome for step in steps] == [Outcome.DECLINED, Outcome.DONE]
    assert apt.read_text() == "install -y libdw-dev\n"


@pytest.mark.parametrize(("command", "status"), [("false", 1), ("missing-program", 127)])
def test_after_a_step_that_failed_the_rest_of_it_is_left_out(command: str, status: int) -> None:
    rest = Repair(("true",))
    steps = apply_repairs([broken(Repair((command,)), rest), broken(Repair(("true", "other")))], yes)
    assert [(s.outcome, s.status) for s in steps] == [
        (Outcome.FAILED, status),
        (Outcome.SKIPPED, None),
        (Outcome.DONE, 0),
    ]


def test_one_cause_of_two_findings_is_repaired_once(apt: Path, as_root: None) -> None:
    repair = from_system(("ccache",))
    steps = apply_repairs([broken(*repair, check="a"), broken(*repair, check="b")], yes)
    assert [(s.check, s.outcome) for s in steps] == [("a", Outcome.DONE), ("b", Outcome.DONE)]
    assert apt.read_text().count("install") == 1

    steps = apply_repairs([broken(*in_shell("unset A")), broken(*in_shell("unset A"))], yes)
    assert len(steps) == 1


def test_what_was_repaired_is_what_changed() -> None:
    ok = Finding("a", Level.OK, "f")
    assert repaired([broken(check="a"), broken(check="b")], [ok, broken(check="b")]) == ("a",)
    assert repaired([broken(check="a")], []) == ("a",)


# the command


@pytest.fixture
def sick(cache: Path, apt: Path, as_root: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one row that apt can repair and one that the user has to; returns apt's log."""
    from archwright.machine import check_compiler_cache, check_variables

    monkeypatch.setenv("CPATH", "/stray")
    monkeypatch.setattr(
        "archwright.doctor.examine", lambda target, python=None: (*check_compiler_cache(), *check_variables())
    )
    return apt


def test_fix_without_a_terminal_only_prints(sick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor", "sm100", "--fix"])

    out = capfd.readouterr().out
    assert status == 0, "notes do not make a machine unfit"
    assert "  apt-get install -y ccache  # compiler cache\n  unset CPATH  # variables\n" in out
    assert not sick.exists()


def test_without_fix_nothing_is_offered(sick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "sm100"])
    assert "repairs:" not in capfd.readouterr().out


def test_yes_runs_what_can_be_run_and_looks_again(sick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor", "sm100", "--fix", "--yes"])

    out, err = capfd.readouterr()
    assert status == 0
    assert sick.read_text() == "install -y ccache\n"
    assert "$ apt-get install -y ccache" in err
    assert "installing ccache" in out, "what the command prints is shown"
    assert "repaired: compiler cache\n" in out
    assert "variables" in out.partition("repaired:")[2], "what is left is said again"


def test_yes_with_json_is_json_alone(sick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "sm100", "--fix", "--yes", "--json"])

    out, err = capfd.readouterr()
    data = json.loads(out)
    assert "installing ccache" in err
    assert [(s["line"], s["outcome"]) for s in data["steps"]] == [
        ("apt-get install -y ccache", "done"),
        ("unset CPATH", "printed"),
    ]
    assert data["repaired"] == ["compiler cache"]
    assert {f["check"]: f["level"] for f in data["findings"]} == {"compiler cache": "ok", "variables": "note"}


def test_json_without_yes_lists_and_runs_nothing(sick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "sm100", "--fix", "--json"])
    data = json.loads(capfd.readouterr().out)
    assert [step["outcome"] for step in data["steps"]] == ["printed", "printed"]
    assert not sick.exists()


@pytest.mark.parametrize(("before", "after", "status"), [("fail", "ok", 0), ("fail", "fail", 4), ("ok", "ok", 0)])
def test_the_status_is_by_the_state_afterwards(
    before: str, after: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([before, after])
    monkeypatch.setattr(
        "archwright.doctor.examine",
        lambda target, python=None: (broken(Repair(("true",)), level=Level(next(states))),),
    )
    assert cli.main(["doctor", "sm100", "--fix", "--yes"]) == status


def test_yes_without_fix_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "sm100", "--yes"]) == 2
    assert "AW109" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("answers", "words", "installed"),
    [("y\n", [], True), ("n\n", [], False), ("\n", [], False), ("y\n", ["--json"], False)],
    ids=["yes", "no", "nothing", "JSON asks nothing"],
)
def test_on_a_terminal_each_step_is_asked_for(
    answers: str, words: list[str], installed: bool, sick: Path, tmp_path: Path
) -> None:
    """A real terminal: the command reads and writes a pseudo-terminal."""
    import pty

    program = tmp_path / "ask.py"
    program.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "import archwright.doctor, archwright.repairs as repairs\n"
        "from archwright.machine import check_compiler_cache\n"
        f"repairs._APT_LISTS = Path({str(tmp_path / 'lists')!r})\n"
        "os.geteuid = lambda: 0\n"
        "archwright.doctor.examine = lambda target, python=None: tuple(check_compiler_cache())\n"
        "from archwright.cli import main\n"
        "sys.exit(main(['doctor', 'sm100', '--fix', *sys.argv[1:]]))\n"
    )
    main, terminal = pty.openpty()
    os.write(main, answers.encode())

    process = subprocess.run(
        [sys.executable, program, *words], stdin=terminal, stdout=terminal, stderr=terminal, timeout=60
    )

    os.close(terminal)
    os.close(main)
    assert process.returncode == 0
    assert sick.exists() == installed
