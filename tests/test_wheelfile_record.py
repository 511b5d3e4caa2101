"""RECORD: what a wheel says about its files, and whether that is so (case F4)."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.wheelfile import check_record, read_wheel

INFO = "tiny-1.0.dist-info"
INIT = b"value = 1\n" * 20
FILES = {"tiny/__init__.py": INIT, f"{INFO}/METADATA": b"Name: tiny\n", f"{INFO}/WHEEL": b"Tag: py3-none-any\n"}


def digest(algorithm: str, data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()


ROWS = [f"{name},sha256={digest('sha256', data)},{len(data)}\n" for name, data in FILES.items()]
RECORD = "".join([*ROWS, f"{INFO}/RECORD,,\n"])


@pytest.fixture
def problems(tmp_path: Path) -> Callable[..., list[str]]:
    """What is wrong with a wheel of `FILES`, of this RECORD and of `more` files beside it."""

    def problems(record: str | bytes | None, **more: bytes) -> list[str]:
        path = tmp_path / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, data in {**FILES, **{f"{INFO}/{name}": data for name, data in more.items()}}.items():
                wheel.writestr(name, data)
            if record is not None:
                wheel.writestr(f"{INFO}/RECORD", record)
        return check_record(read_wheel(path))

    return problems


def test_a_good_record_has_no_problem(problems: Callable[..., list[str]]) -> None:
    assert problems(RECORD) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("tiny/__init__.py,", "tiny/other.py,", ["in RECORD, not in the wheel", "__init__.py: not in RECORD"]),
        (f"{digest('sha256', INIT)},200", f"{digest('sha256', b'')},200", ["tiny/__init__.py: wrong hash"]),
        (f"{digest('sha256', INIT)},200", f"{digest('sha256', INIT)}=,200", ["tiny/__init__.py: wrong hash"]),
        (f"{digest('sha256', INIT)},200", f"{digest('sha256', INIT)},201", ["wrong size ('201', not 200)"]),
        (f"{digest('sha256', INIT)},200", f"{digest('sha256', INIT)},", ["tiny/__init__.py: no size"]),
        (f"sha256={digest('sha256', INIT)},200", ",200", ["tiny/__init__.py: no hash"]),
        (
            f"sha256={digest('sha256', INIT)}",
            f"md5={digest('md5', INIT)}",
            ["tiny/__init__.py: hash algorithm 'md5' is weak or unknown"],
        ),
        (f"sha256={digest('sha256', INIT)}", "=", ["tiny/__init__.py: hash algorithm '' is weak or unknown"]),
        (f"sha256={digest('sha256', INIT)}", f"sha512={digest('sha512', INIT)}", []),
        (f"{INFO}/RECORD,,\n", "", [f"{INFO}/RECORD: not in RECORD"]),
        (f"{INFO}/RECORD,,\n", f"{INFO}/RECORD,,7\n", ["RECORD: has a hash or size of itself"]),
        (f"{INFO}/RECORD,,\n", f"{INFO}/RECORD,,\n" * 2, [f"{INFO}/RECORD: twice in RECORD"]),
        (f"{INFO}/RECORD,,\n", f"{INFO}/RECORD\n", ["RECORD has a line of 1 fields, not 3", "RECORD: not in RECORD"]),
        ("tiny/__init__.py,", '"tiny/__init__.py",', []),
        ("\n", "\r\n", []),
        ("tiny/__init__.py,", '"tiny/__init__.py"x,', ["RECORD is not a table"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_record(problems: Callable[..., list[str]], old: str, new: str, expected: list[str]) -> None:
    assert old in RECORD

    found = problems(RECORD.replace(old, new))

    assert len(found) == len(expected)
    assert all(words in text for words, text in zip(expected, found, strict=True))


def test_record_may_be_absent_or_unreadable(problems: Callable[..., list[str]]) -> None:
    assert problems(None) == ["RECORD is missing"]
    assert "not a table" in problems(b"\xff")[0]
    assert "not a table" in problems("x" * 200_000)[0]


def test_signatures_of_record_are_not_listed_in_it(problems: Callable[..., list[str]]) -> None:
    assert problems(RECORD, **{"RECORD.jws": b"{}", "RECORD.p7s": b""}) == []
    assert problems(RECORD, **{"RECORD.txt": b""}) == [f"{INFO}/RECORD.txt: not in RECORD"]
