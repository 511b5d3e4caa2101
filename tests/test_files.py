"""Large files: hashing and placing them."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archwright import files as files_module
from archwright.errors import ArchwrightError
from archwright.files import copy_verified, hash_files


def test_hashing_in_threads(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}" for n in range(20)]
    for n, path in enumerate(paths):
        path.write_bytes(bytes([n]) * n * 100_000)

    assert hash_files(paths) == {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_progress_is_reported_after_much_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_REPORTED", 1 << 20)
    (tmp_path / "small").write_bytes(b"x")
    with (tmp_path / "big").open("wb") as file:
        file.truncate(100_000_000)
    said: list[str] = []

    hash_files([tmp_path / "small"], said.append)
    assert said == []
    hash_files([tmp_path / "small", tmp_path / "big"], said.append)
    assert said == ["  0.1 of 0.1 GB"]


def test_d2_ctrl_c_ends_hashing_at_once(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(200 << 30)  # sparse: it would take minutes to read
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path; from archwright.files import hash_files\n"
        f"print('begun', flush=True); hash_files([Path({str(big)!r})] )"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=5)
    assert "KeyboardInterrupt" in errors


def test_a_copy_that_differs_is_aw201_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    with pytest.raises(ArchwrightError) as caught:
        copy_verified(tmp_path / "a", tmp_path / "to" / "b", "0" * 64)
    assert caught.value.code == "AW201"
    assert list((tmp_path / "to").iterdir()) == []
