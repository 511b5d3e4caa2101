"""Where things are, and room on the disk (case C5)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from archwright.errors import ArchwrightError, Exit
from archwright.project import cache_dir, free_bytes, project_root, require_space, write_errors


def test_the_checkout_is_the_project(root: Path) -> None:
    assert project_root() == root
    for name in ("csrc", "cmake", "envs"):
        assert (project_root() / name).is_dir()


def test_the_cache_is_where_the_user_says(cache: Path) -> None:
    assert cache_dir() == cache
    assert cache.is_dir()


def test_a_relative_cache_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARCHWRIGHT_CACHE", "here")
    assert cache_dir() == tmp_path / "here"


def test_without_a_word_it_is_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARCHWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "archwright"


def test_free_room_is_asked_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet" / "there") > 0


def test_enough_room_is_silent(tmp_path: Path) -> None:
    assert require_space(tmp_path, 1, "a byte") is None


def test_c5_too_little_room_says_how_much_and_for_what(tmp_path: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        require_space(tmp_path / "x", 1 << 60, "a very large thing")

    assert caught.value.code == "AW308"
    assert caught.value.exit is Exit.UNFIT
    assert "1152921504.6 GB for a very large thing" in caught.value.needed
    assert str(tmp_path) in caught.value.found
    assert "ARCHWRIGHT_CACHE" in caught.value.fix


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_c5_a_full_disk_or_quota_becomes_aw308(number: int, tmp_path: Path) -> None:
    with pytest.raises(ArchwrightError) as caught, write_errors(tmp_path):
        raise OSError(number, os.strerror(number), "/some/file")
    assert caught.value.code == "AW308"
    assert "/some/file" in caught.value.found


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), write_errors(tmp_path):
        raise IsADirectoryError(errno.EISDIR, "no", "/some/file")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_aw327(number: int, tmp_path: Path) -> None:
    with pytest.raises(ArchwrightError) as caught, write_errors(tmp_path):
        raise OSError(number, "no", "/some/file")
    assert caught.value.code == "AW327"
    assert "/some/file" in caught.value.found


def test_c5_a_really_full_disk(private_mounts: list[str], tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from archwright.project import write_errors\n"
        "from archwright.errors import ArchwrightError\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "try:\n"
        "    with write_errors(path): (path / 'file').write_bytes(bytes(1_000_000))\n"
        "except ArchwrightError as error: print(error.code)"
    )
    shell = [*private_mounts, "sh", "-ec", f'mount -t tmpfs -o size=64k tmpfs {tmp_path}; exec "$@"', "sh"]
    run = subprocess.run([*shell, sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert run.stdout == "AW308\n"
