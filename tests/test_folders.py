"""Folders that a build writes in: real file systems, mounted for the test where nobody else sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from archwright import folders
from archwright.components import components
from archwright.errors import ArchwrightError, Exit
from archwright.findings import Finding, Level
from archwright.folders import check_disks, check_folders, check_temporary, nearest
from archwright.project import cache_dir, cache_path
from archwright.targets import target_table

SM100 = target_table().targets["sm100"]
components()  # read before the tests: that the tables are valid is remembered in the cache

#: Mounts a file system at argv[1] with the options argv[2], then says what a check finds.
LOOK = """\
import json, subprocess, sys
point, options, check = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", point], check=True)
from archwright import folders
from archwright.targets import target_table
target = target_table().targets["sm100"]
found = folders.check_temporary() if check == "check_temporary" else getattr(folders, check)(target)
print(json.dumps([finding.as_dict() for finding in found]))
"""


@pytest.fixture
def look(private_mounts: list[str], tmp_path: Path, quiet: None) -> Any:
    """What a check finds with a file system of its own at `point`: rows by name."""
    point = tmp_path / "point"
    point.mkdir()

    def run(options: str, check: str, without: tuple[str, ...] = (), **settings: str) -> dict[str, dict[str, Any]]:
        env = {**os.environ, "ARCHWRIGHT_CACHE": str(tmp_path / "cache"), "UV_CACHE_DIR": str(tmp_path / "uv")}
        env |= {"CCACHE_DIR": str(tmp_path / "ccache")} | {n: v.format(point=point) for n, v in settings.items()}
        env = {name: value for name, value in env.items() if name not in without}
        command = [*private_mounts, sys.executable, "-c", LOOK, str(point), options, check]
        answer = subprocess.run(command, env=env, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        return {row["check"]: row for row in json.loads(answer.stdout)}

    return run


def the(rows: Iterable[Finding], check: str) -> Finding:
    return {finding.check: finding for finding in rows}[check]


def lines(row: dict[str, Any]) -> list[str]:
    return [repair["line"] for repair in row["repairs"]]


def test_folders_that_can_be_written(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))

    (finding,) = check_folders(SM100)

    assert (finding.level, finding.code) == (Level.OK, "AW327")
    assert list(tmp_path.iterdir()) == [], "nothing is made, nothing is left behind"


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("ARCHWRIGHT_CACHE", "export ARCHWRIGHT_CACHE=/var/tmp/archwright-"),
        ("UV_CACHE_DIR", "export UV_CACHE_DIR=/var/tmp/archwright-"),
    ],
)
def test_a_read_only_folder_is_named_with_its_variable(variable: str, line: str, look: Any) -> None:
    row = look("ro", "check_folders", **{variable: "{point}/cache"})["folders"]

    assert (row["level"], row["code"]) == ("fail", "AW327")
    assert "Read-only file system" in row["found"]
    assert variable in row["found"]
    assert row["found"].count("Read-only") == 1, "the others can be written"
    assert lines(row)[0].startswith(line)
    assert not row["repairs"][0]["can_run"], "a variable of the user's shell is his to set"


def test_a_read_only_home(look: Any) -> None:
    own = ("ARCHWRIGHT_CACHE", "UV_CACHE_DIR", "CCACHE_DIR", "XDG_CACHE_HOME")

    row = look("ro", "check_folders", own, HOME="{point}")["folders"]

    assert row["level"] == "fail"
    assert row["found"].count("Read-only") >= 2
    assert [line.partition("=")[0] for line in lines(row)][:2] == ["export ARCHWRIGHT_CACHE", "export UV_CACHE_DIR"]


def test_a_full_cache(look: Any) -> None:
    row = look("size=4k,nr_inodes=2", "check_folders", ARCHWRIGHT_CACHE="{point}")["folders"]
    if row["level"] == "ok":
        row = look("nr_inodes=1", "check_folders", ARCHWRIGHT_CACHE="{point}")["folders"]
    assert row["level"] == "fail"
    assert "No space left" in row["found"]


def test_a_user_without_a_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with a user id of its own."""
    monkeypatch.setattr(folders, "_has_home", lambda: False)
    finding = the(check_folders(SM100), "folders")
    assert finding.level is Level.FAIL
    assert "HOME is not set" in finding.found
    assert f"export HOME=/var/tmp/archwright-{os.getuid()}/home" in [str(r) for r in finding.repairs]


def test_home_that_is_not_set_is_known_from_the_users_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    assert folders._has_home()


def test_a_cache_that_permits_no_programs(look: Any) -> None:
    rows = look("noexec", "check_folders", ARCHWRIGHT_CACHE="{point}/cache")

    assert rows["folders"]["level"] == "ok"
    row = rows["programs in the cache"]
    assert (row["level"], row["code"]) == ("fail", "AW326")
    assert "noexec" in row["found"]
    assert lines(row) == [f"export ARCHWRIGHT_CACHE=/var/tmp/archwright-{os.getuid()}"]


def test_a_temporary_folder_that_is_as_it_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    finding = the(check_temporary(), "temporary folder")
    assert (finding.level, finding.code) == (Level.OK, "AW326")
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_that_permits_no_programs_is_a_note(look: Any) -> None:
    """Compilers were seen to work there."""
    row = look("noexec", "check_temporary", TMPDIR="{point}")["temporary folder"]
    assert (row["level"], row["code"]) == ("note", "AW326")
    assert "noexec" in row["found"]
    assert lines(row) == ["export TMPDIR=/var/tmp"]


def test_a_temporary_folder_that_cannot_be_written(look: Any) -> None:
    row = look("ro", "check_temporary", TMPDIR="{point}")["temporary folder"]
    assert (row["level"], row["code"]) == ("fail", "AW326")
    assert "Read-only file system" in row["found"]
    assert lines(row) == ["unset TMPDIR"]


def test_a_temporary_folder_that_is_full(look: Any) -> None:
    row = look("nr_inodes=1", "check_temporary", TMPDIR="{point}")["temporary folder"]
    assert (row["level"], row["code"]) == ("fail", "AW326")
    assert "No space left" in row["found"]


def test_a_temporary_folder_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python quietly takes another one; nvcc does not."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    finding = the(check_temporary(), "temporary folder")
    assert finding.level is Level.FAIL
    assert str(tmp_path / "nowhere") in finding.found


def test_c5_too_little_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "free_bytes", lambda path: 14 * 10**9)
    finding = the(check_disks(SM100), "disk")
    assert (finding.level, finding.code) == (Level.FAIL, "AW308")
    assert "15 GB" in finding.needed

    monkeypatch.setattr(folders, "free_bytes", lambda path: 16 * 10**9)
    assert the(check_disks(SM100), "disk").level is Level.OK


def test_with_a_complete_environment_less_is_needed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "free_bytes", lambda path: 6 * 10**9)
    assert the(check_disks(SM100), "disk").level is Level.FAIL

    record = cache / "envs" / "sm100-0" / "env.json"
    record.parent.mkdir(parents=True)
    record.touch()
    assert the(check_disks(SM100), "disk").level is Level.OK


def test_other_disks_are_asked_for_what_they_hold(look: Any) -> None:
    rows = look("size=1g", "check_disks", TMPDIR="{point}")
    row = rows["disk: temporary files"]
    assert (row["level"], row["code"]) == ("fail", "AW308")
    assert row["needed"] == "2 GB for temporary files"
    assert "temporary files" not in rows["disk"]["needed"], "each disk is asked once"

    rows = look("size=1g", "check_disks", UV_CACHE_DIR="{point}")
    assert rows["disk: uv's packages"]["needed"] == "9 GB for uv's packages"


def test_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert nearest(tmp_path / "not" / "yet") == tmp_path
    assert nearest(Path("/")) == Path("/")


def test_a_cache_that_cannot_be_made_is_aw327_for_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "file" / "cache"))

    with pytest.raises(ArchwrightError) as caught:
        cache_dir()

    assert (caught.value.code, caught.value.exit) == ("AW327", Exit.UNFIT)
    assert str(tmp_path / "file" / "cache") in caught.value.found
    assert cache_path() == tmp_path / "file" / "cache", "asking where it is makes nothing"
