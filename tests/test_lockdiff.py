"""Two locks as a person compares them: what changed, how far, in which order, and what is suspicious."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.errors import ArchwrightError
from archwright.lockdiff import Change, ChangeKind, LockDiff, compare_locks

A, B, C = "a" * 64, "b" * 64, "c" * 64

type Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a lock of `name==version` lines; each may bring hashes, a marker and a reason."""

    def lock(name: str, *packages: str, header: str = "") -> Path:
        lines = [header] if header else []
        for package in packages:
            stated, *reason = package.split(" # ")
            if "--hash" not in stated:
                stated += f" --hash=sha256:{A}"
            lines += [stated, *(f"    # reason: {text}" for text in reason)]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return path

    return lock


def only(diff: LockDiff) -> Change:
    ((change,),) = (lock.changes for lock in diff.locks)
    return change


def test_equal_locks_are_the_same_whatever_asks_for_a_package(write: Write) -> None:
    old, new = write("old/x.lock", "fast==1", "slow==2"), write("new/x.lock", "slow==2", "fast==1")
    new.write_text(new.read_text() + "    # via other\n")

    diff = compare_locks(old, new)

    assert diff.same
    assert diff.lines() == ("x.lock: the same 2 packages",)
    assert diff.summary == "x.lock: the same 2 packages"


@pytest.mark.parametrize(
    ("old", "new", "kind", "step"),
    [
        ("1.2.3", "2.0", ChangeKind.UPGRADED, "major"),
        ("1.2.3", "1!1.2.3", ChangeKind.UPGRADED, "major"),
        ("1.2", "1.10.0", ChangeKind.UPGRADED, "minor"),
        ("1", "1.1", ChangeKind.UPGRADED, "minor"),
        ("1.2.3", "1.2.10", ChangeKind.UPGRADED, "patch"),
        ("1.2.3.4", "1.2.3.5", ChangeKind.UPGRADED, "patch"),
        ("1.2rc1", "1.2", ChangeKind.UPGRADED, "patch"),
        ("1.2+cu130", "1.2+cu132", ChangeKind.UPGRADED, "patch"),
        ("2.0", "1.9", ChangeKind.DOWNGRADED, "major"),
        ("1.10", "1.9", ChangeKind.DOWNGRADED, "minor"),
        ("1.2", "1.2.dev1", ChangeKind.DOWNGRADED, "patch"),
    ],
)
def test_the_step_of_a_version(old: str, new: str, kind: ChangeKind, step: str, write: Write) -> None:
    diff = compare_locks(
        write("old.lock", f"fast=={old} --hash=sha256:{A}"), write("new.lock", f"fast=={new} --hash=sha256:{B}")
    )

    assert not diff.same
    assert only(diff) == Change("fast", kind, old, new, step, ())  # other hashes are no news of another version


def test_added_and_removed_packages(write: Write) -> None:
    old = write("old.lock", "gone==1", "kept==1")
    new = write("new.lock", "kept==1", 'new==2 ; platform_machine == "aarch64" # asked for')

    (lock,) = compare_locks(old, new).locks

    assert lock.changes == (
        Change("gone", ChangeKind.REMOVED, "1", "", "", ()),
        Change("new", ChangeKind.ADDED, "", "2", "", ("reason: asked for", 'for platform_machine == "aarch64" only')),
    )
    assert lock.summary == "new.lock: 2 of 3 packages change: 1 added, 1 removed"


@pytest.mark.parametrize(
    ("old", "new", "suspicious", "words"),
    [
        ([A], [A, B, C], False, "2 hashes added, none removed"),
        ([A], [A, B], False, "1 hash added, none removed"),
        ([A, B], [A], True, "1 hash removed and 0 added"),
        ([A], [B], True, "1 hash removed and 1 added"),
        ([A, B], [A, C], True, "1 hash removed and 1 added"),
    ],
)
def test_other_files_of_the_same_version(
    old: list[str], new: list[str], suspicious: bool, words: str, write: Write
) -> None:
    sides = [
        write(name, "fast==1" + "".join(f" --hash=sha256:{digest}" for digest in digests))
        for name, digests in (("old.lock", old), ("new.lock", new))
    ]

    diff = compare_locks(*sides)

    change = only(diff)
    assert (change.kind, change.old, change.new, change.suspicious) == (ChangeKind.OTHER_FILES, "1", "1", suspicious)
    assert words in change.notes[0]
    assert ("suspicious" in change.notes[0]) is suspicious
    assert diff.summary.endswith(f"1 other files{', 1 suspicious' if suspicious else ''}")


def test_another_marker_or_reason_of_the_same_version(write: Write) -> None:
    old = write("old.lock", "fast==1", "slow==1 # because")
    new = write("new.lock", 'fast==1 ; python_version < "3.13"', "slow==1")

    (lock,) = compare_locks(old, new).locks

    assert lock.changes == (
        Change(
            "fast", ChangeKind.OTHER_MARKER, "1", "1", "", ('for python_version < "3.13" instead of every platform',)
        ),
        Change("slow", ChangeKind.OTHER_REASON, "1", "1", "", ("reason: none (was: because)",)),
    )
    assert "  slow  1  other reason" in lock.lines()


def test_one_line_tells_all_that_changes_of_a_package(write: Write) -> None:
    old = write("old.lock", 'fast==1 ; python_version < "3.13" # old reason')
    new = write("new.lock", "fast==2 # new reason")

    assert only(compare_locks(old, new)).notes == (
        'for every platform instead of python_version < "3.13"',
        "reason: new reason (was: old reason)",
    )


def test_what_matters_comes_first(write: Write) -> None:
    names = ("aaa", "cmake", "gcc", "nvidia-nccl-cu13", "torch", "triton", "zzz", "torchvision", "cuda-toolkit")
    old, new = (write(f"{v}.lock", *(f"{name}=={v}" for name in names)) for v in "12")

    (lock,) = compare_locks(old, new).locks

    assert [change.package for change in lock.changes] == [
        *("cuda-toolkit", "nvidia-nccl-cu13", "torch"),
        *("triton", "gcc", "cmake"),
        *("aaa", "torchvision", "zzz"),
    ]


def test_lines_for_people_stand_in_columns(write: Write) -> None:
    old = write("old.lock", "torch==1.9", "gone==1", "kept==1")
    new = write("new.lock", "torch==2.0 # newer", "extra==10.11.12", "kept==1")

    assert compare_locks(old, new).lines() == (
        "new.lock: 3 of 4 packages change: 1 added, 1 removed, 1 upgraded (1 major)",
        "  torch  1.9 -> 2.0  upgraded, major",
        "      reason: newer (was: none)",
        "  extra  10.11.12    added",
        "  gone   1           removed",
    )


def test_the_result_is_data(write: Write) -> None:
    diff = compare_locks(write("old.lock", "fast==1"), write("new.lock", "fast==2"))

    data = json.loads(json.dumps(diff.as_dict()))

    assert data["same"] is False
    assert data["locks"][0]["packages"] == 1
    assert data["locks"][0]["changes"] == [
        {
            "package": "fast",
            "kind": "upgraded",
            "old": "1",
            "new": "2",
            "step": "major",
            "notes": [],
            "suspicious": False,
        }
    ]


def test_locks_made_for_other_platforms_differ(write: Write) -> None:
    old = write("old.lock", "fast==1", header="# Made by `archwright env lock` from x.in, for Python 3.12 on x86_64.")
    new = write("new.lock", "fast==1", header="# Made by `archwright env lock` from y.in, for Python 3.12 on aarch64.")

    diff = compare_locks(old, new)

    assert not diff.same
    assert diff.notes == ("new.lock is for Python 3.12 on aarch64 instead of Python 3.12 on x86_64",)
    assert diff.lines()[-1] == diff.notes[0]


def test_a_lock_that_does_not_say_for_what_it_is_is_no_difference(write: Write) -> None:
    new = write("new.lock", "fast==1", header="# Made by `archwright env lock` from x.in, for Python 3.12 on x86_64.")
    old = write("old.lock", "fast==1")
    assert compare_locks(old, new).same
    assert compare_locks(new, old).same


def test_two_folders_are_compared_lock_by_lock(write: Write, tmp_path: Path) -> None:
    for folder, version in (("old", "1"), ("new", "2")):
        write(f"{folder}/runtime.lock", f"torch=={version}")
        write(f"{folder}/toolchain.lock", "cmake==1")
        write(f"{folder}/runtime.in", "ignored==1")
    write("old/extra.lock", "fast==1")

    diff = compare_locks(tmp_path / "old", tmp_path / "new")

    assert not diff.same
    assert [(lock.lock, len(lock.changes)) for lock in diff.locks] == [("runtime.lock", 1), ("toolchain.lock", 0)]
    assert diff.notes == (f"extra.lock is only in {tmp_path / 'old'}",)


def test_a_lock_on_one_side_alone_is_a_difference(write: Write, tmp_path: Path) -> None:
    for folder in ("old", "new"):
        write(f"{folder}/runtime.lock", "torch==1")
    assert compare_locks(tmp_path / "old", tmp_path / "new").same

    write("new/toolchain.lock", "cmake==1")
    assert not compare_locks(tmp_path / "old", tmp_path / "new").same


def test_the_projects_own_folders_compare(root: Path) -> None:
    diff = compare_locks(root / "envs" / "sm100", root / "envs" / "ascend950")

    assert not diff.same
    assert {"runtime.lock", "toolchain.lock"} <= {lock.lock for lock in diff.locks}
    assert compare_locks(root / "envs" / "sm100", root / "envs" / "sm100").same


def refused(old: Path, new: Path) -> ArchwrightError:
    with pytest.raises(ArchwrightError) as caught:
        compare_locks(old, new)
    return caught.value


def test_what_is_not_of_one_kind_is_aw109(write: Write, tmp_path: Path) -> None:
    lock, conda = write("x.lock", "fast==1"), write("conda-lock.yml", "fast==1")
    (tmp_path / "empty").mkdir()

    mixed = refused(lock, conda)
    assert mixed.code == "AW109"
    assert mixed.found == f"the hash lock {lock} and the conda lock {conda}"
    assert refused(conda, lock).found == f"the conda lock {conda} and the hash lock {lock}"
    assert refused(lock, tmp_path).found == f"the hash lock {lock} and the folder {tmp_path}"
    for sides in ((tmp_path, tmp_path / "empty"), (tmp_path / "empty", tmp_path)):
        assert refused(*sides).code == "AW109"
        assert refused(*sides).found == f"no lock in {tmp_path / 'empty'}"


def test_a_lock_that_is_missing_or_damaged_is_aw319(write: Write, tmp_path: Path) -> None:
    lock, damaged = write("x.lock", "fast==1"), write("y.lock", "fast>=1")

    assert refused(lock, tmp_path / "none.lock").code == "AW319"
    assert "line 1" in refused(damaged, lock).found


type Entries = dict[str, dict[str, tuple[str, str, str]]]


@pytest.fixture
def write_conda(tmp_path: Path) -> Write:
    """Write a conda-lock.yml: by platform, name -> (version, build, sha256)."""
    pytest.importorskip("yaml")

    def lock(folder: str, entries: Entries) -> Path:
        packages = [
            {
                "name": name,
                "version": version,
                "manager": "conda",
                "platform": platform,
                "category": "main",
                "url": f"${{CHANNEL}}/{platform}/{name}-{version}-{build}.conda",
                "hash": {"sha256": sha256},
            }
            for platform, found in entries.items()
            for name, (version, build, sha256) in found.items()
        ]
        metadata = {"platforms": list(entries), "channels": [{"url": "${CHANNEL}"}], "content_hash": {}}
        path = tmp_path / folder / "conda-lock.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"version": 1, "metadata": metadata, "package": packages}))  # JSON is YAML
        return path

    return lock


SAME = {"nccl": ("2.32.3", "h1", A)}


def test_conda_locks_are_compared_for_each_platform(write_conda: Write) -> None:
    old = write_conda("old", {"linux-64": {**SAME, "gcc": ("14.1.0", "h0", A)}, "linux-aarch64": SAME})
    new = write_conda("new", {"linux-64": {**SAME, "gcc": ("14.2.0", "h0", B)}, "linux-aarch64": SAME})

    diff = compare_locks(old, new)

    assert not diff.same
    assert [(lock.platform, [c.package for c in lock.changes]) for lock in diff.locks] == [
        ("linux-64", ["gcc"]),
        ("linux-aarch64", []),
    ]
    assert diff.lines()[-1] == "conda-lock.yml for linux-aarch64: the same 1 package"
    assert compare_locks(old, old).same


@pytest.mark.parametrize(
    ("old", "new", "kind", "suspicious"),
    [
        (("1.0", "h0", A), ("1.0", "h1", B), ChangeKind.REBUILT, False),
        (("1.0", "h0", A), ("1.0", "h0", B), ChangeKind.OTHER_FILES, True),
        (("2.1", "h0", A), ("2.2", "h0", B), ChangeKind.UPGRADED, False),
        (("9e", "h0", A), ("9f", "h0", B), ChangeKind.OTHER_VERSION, False),
        (("9.1", "h0", A), ("9.2", "h1", B), ChangeKind.UPGRADED, False),
    ],
)
def test_a_conda_package_has_builds(
    old: tuple[str, str, str], new: tuple[str, str, str], kind: ChangeKind, suspicious: bool, write_conda: Write
) -> None:
    sides = [write_conda(folder, {"linux-64": {"fast": each}}) for folder, each in (("old", old), ("new", new))]

    change = only(compare_locks(*sides))

    assert (change.kind, change.suspicious) == (kind, suspicious)
    assert ("build h1 instead of h0" in change.notes) is (old[1] != new[1])


def test_a_platform_on_one_side_alone_is_named(write_conda: Write) -> None:
    old = write_conda("old", {"linux-64": SAME})
    new = write_conda("new", {"linux-64": SAME, "linux-aarch64": SAME})

    diff = compare_locks(old, new)

    assert not diff.same
    assert diff.notes == (f"conda-lock.yml is for linux-aarch64 only in {new}",)


def test_folders_whose_conda_lock_is_not_made_yet_still_compare(
    write: Write, write_conda: Write, tmp_path: Path
) -> None:
    for folder in ("old", "new"):
        write(f"{folder}/runtime.lock", "torch==1")
        (tmp_path / folder / "conda-lock.yml").write_text(f"not_yet_locked_here: true\nwhy: no channel for {folder}\n")

    diff = compare_locks(tmp_path / "old", tmp_path / "new")

    assert diff.same
    assert [lock.lock for lock in diff.locks] == ["runtime.lock"]
    assert "conda-lock.yml is not compared" in diff.notes[0]
    assert refused(tmp_path / "old" / "conda-lock.yml", tmp_path / "new" / "conda-lock.yml").code == "AW316"

    # when one of the two is made
    write_conda("new", {"linux-64": SAME})
    assert not compare_locks(tmp_path / "old", tmp_path / "new").same


def test_a_damaged_conda_lock_is_aw319(write_conda: Write) -> None:
    lock = write_conda("old", {"linux-64": SAME})
    damaged = write_conda("new", {"linux-64": SAME})
    damaged.write_text(damaged.read_text().replace(A, "short"))

    assert refused(lock, damaged).code == "AW319"
    assert refused(lock.parent, damaged.parent).code == "AW319"
