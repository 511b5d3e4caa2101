"""Hash locks: what is read from them, and that nothing else passes for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from archwright.errors import ArchwrightError, Exit
from archwright.lockfile import LockedPackage, read_lock

A, B, C = "a" * 64, "b" * 64, "c" * 64

LOCK = f"""\
# Made by hand.
fast_thing==1.2 \\
    --hash=sha256:{B} \\
    --hash=sha256:{A}
    # via
    #   -r x.in
    #   other
    # reason: the first
    #     and the second half
Slow.Thing==2.0+cu132 ; platform_machine == "aarch64" --hash=sha256:{C}

    # not below a package
"""


def unreadable(path: Path) -> str:
    with pytest.raises(ArchwrightError) as caught:
        read_lock(path)
    assert caught.value.code == "AW319"
    assert caught.value.exit is Exit.CHECK_FAILED
    return caught.value.found


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "x.lock"
    path.write_text(LOCK)
    return path


def test_packages_with_all_that_a_lock_says_of_them(lock: Path) -> None:
    why = ("via", "-r x.in", "other", "reason: the first", "and the second half")

    packages = read_lock(lock)

    assert list(packages.values()) == [
        LockedPackage("fast-thing", Version("1.2"), (A, B), "", why, "the first and the second half"),
        LockedPackage("slow-thing", Version("2.0+cu132"), (C,), 'platform_machine == "aarch64"', (), ""),
    ]
    assert list(packages) == ["fast-thing", "slow-thing"]


@pytest.mark.parametrize(
    ("comments", "reason"),
    [
        ("    # reason: one", "one"),
        ("    # reason: one\n    # via two", "one"),
        ("    # via two\n    #     three\n    # reason:   one  \n    #     more", "one more"),
        ("    # reason: one\n    # reason: two", "one two"),
        ("    # no reason: one", ""),
        ("    # via two\n    #     three", ""),
        ("# reason: not indented, so not below the package", ""),
    ],
)
def test_the_reason_of_a_pin_is_one_text(comments: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.write_text(f"fast==1 --hash=sha256:{A}\n{comments}\nslow==1 --hash=sha256:{A}\n    # reason: of another\n")

    packages = read_lock(path)

    assert packages["fast"].reason == reason
    assert packages["slow"].reason == "of another"


def test_a_lock_may_be_spaced_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.write_text(f"fast==12\\\n--hash=sha256:{A}\\\n\t--hash=sha256:{B}")
    assert read_lock(path)["fast"] == LockedPackage("fast", Version("12"), (A, B), "", ())


def test_line_ends_of_windows_make_no_difference(lock: Path) -> None:
    before = read_lock(lock)
    lock.write_bytes(LOCK.replace("\n", "\r\n").encode())
    assert read_lock(lock) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"fast --hash=sha256:{A}", "no `name==version`"),
        (f"fast>=1 --hash=sha256:{A}", "no exact version"),
        (f"fast===1 --hash=sha256:{A}", "no exact version"),
        (f"fast==1.* --hash=sha256:{A}", "no `name==version`"),
        (f"fast==1,<2 --hash=sha256:{A}", "no `name==version`"),
        ("fast==1", "has no hash"),
        (f"fast==1 --hash=sha256:{A[1:]}", "no `name==version`"),
        (f"fast==1 --hash=sha256:{A}0", "no `name==version`"),
        (f"fast==1 --hash=sha256:{A.upper()}", "no `name==version`"),
        (f"fast==1 --hash=md5:{A[:32]}", "no `name==version`"),
        (f"fast==1--hash=sha256:{A}", "no `name==version`"),
        (f"fast @ https://host/fast.whl --hash=sha256:{A}", "no `name==version`"),
        (f"fast==1 ; nonsense --hash=sha256:{A}", "no `name==version`"),
        ("--index-url https://host/", "is an option"),
        ("-r other.lock", "is an option"),
        (f"good==2 --hash=sha256:{B}", "good is there twice"),
        (f"GOOD==1 --hash=sha256:{B}", "good is there twice"),
        ("fast==1 \\", "is cut off"),
        (f"fast==1 \\\n# comment\n    --hash=sha256:{A}", "is cut off"),
        (f"# harmless\u2028fast==1 --hash=sha256:{A}", "a control character"),
        (f"fast==1 \x0b--hash=sha256:{A}", "a control character"),
        ("\0", "a control character"),
        ("\ufeff", "a control character"),
        ("<<<<<<< ours", "no `name==version`"),
    ],
)
def test_what_is_no_lock_is_aw319_with_the_line(line: str, words: str, tmp_path: Path) -> None:
    # given a lock that is well up to its third line
    path = tmp_path / "x.lock"
    path.write_text(f"good==1 \\\n    --hash=sha256:{A}\n{line}\n", encoding="utf-8")

    found = unreadable(path)

    assert f"{path}, line 3: " in found
    assert words in found


def test_a_lock_that_ends_in_the_middle_is_aw319(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.write_text("fast==1 \\")
    assert f"{path}, line 1: 'fast==1 \\' is cut off" in unreadable(path)


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xff\xfe", b"a==1 --hash=sha256:\xe9"])
def test_a_file_without_packages_or_without_text_is_aw319(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.write_bytes(content)
    assert str(path) in unreadable(path)


def test_a_lock_that_is_not_there_or_a_folder_is_aw319(tmp_path: Path) -> None:
    assert unreadable(tmp_path / "none.lock").startswith(f"{tmp_path / 'none.lock'}: [Errno 2] No such file")
    assert "directory" in unreadable(tmp_path)


digests = st.text("0123456789abcdef", min_size=64, max_size=64)
packages = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,4})?", fullmatch=True),
    st.tuples(
        st.from_regex(r"[1-9][0-9]?(\.[1-9][0-9]?){0,3}(rc[1-9])?(\+cu[1-9]{3})?", fullmatch=True),
        st.sets(digests, min_size=1, max_size=4),
        st.sampled_from(["", 'platform_machine == "x86_64"', 'python_version < "3.13"']),
        st.lists(st.from_regex(r"[a-z]+( [a-z]+)*", fullmatch=True), max_size=3),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(packages)
def test_what_is_written_is_read(tmp_path: Path, wanted: dict[str, tuple[str, set[str], str, list[str]]]) -> None:
    lines = []
    for name, (version, hashes, marker, reason) in wanted.items():
        lines.append(f"{name}=={version}{f' ; {marker}' if marker else ''} \\")
        lines += [f"    --hash=sha256:{digest} \\" for digest in hashes]
        lines[-1] = lines[-1].removesuffix(" \\")
        lines += [f"    # reason: {reason[0]}", *(f"    #     {more}" for more in reason[1:])] if reason else []
    path = tmp_path / "x.lock"
    path.write_text("\n".join(lines))

    found = read_lock(path)

    assert {
        name: (str(package.version), set(package.hashes), package.marker, package.reason)
        for name, package in found.items()
    } == {name: (version, hashes, marker, " ".join(why)) for name, (version, hashes, marker, why) in wanted.items()}
    assert list(found) == list(wanted)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, len(LOCK)),
    st.integers(0, len(LOCK)),
    st.text(max_size=3) | st.sampled_from(["\n", "\\", "#", "\\\n"]),
)
def test_a_damaged_lock_is_read_or_aw319(tmp_path: Path, start: int, end: int, text: str) -> None:
    # given a lock in which a part is replaced by something else
    path = tmp_path / "x.lock"
    path.write_text(LOCK[: min(start, end)] + text + LOCK[max(start, end) :], encoding="utf-8")

    try:
        found = read_lock(path)
    except ArchwrightError as error:
        assert error.code == "AW319"
    else:
        assert found
        for package in found.values():
            assert package.hashes
            assert all(len(digest) == 64 for digest in package.hashes)
