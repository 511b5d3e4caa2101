"""Case C5: archives that are damaged or hostile leave nothing behind, and say what is wrong with them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archwright import archives
from archwright.archives import extract_sdist
from archwright.errors import ArchwrightError

MakeSdist = Callable[..., Path]


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info, b"evil" if kind == tarfile.REGTYPE else b""


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_good_archive_is_unpacked_whole(tmp_path: Path, make_sdist: MakeSdist) -> None:
    archive = make_sdist(
        files={"a.txt": "one", "deep/b.txt": "two"}, members=[entry("tiny-1.0/l", tarfile.SYMTYPE, "a.txt")]
    )

    extract_sdist(archive, "tiny-1.0", tmp_path / "out" / "tree")

    tree = tmp_path / "out" / "tree"
    assert (tree / "a.txt").read_text() == "one"
    assert (tree / "deep" / "b.txt").read_text() == "two"
    assert (tree / "l").read_text() == "one"
    assert everything_in(tmp_path / "out") == {"tree", "tree/a.txt", "tree/deep", "tree/deep/b.txt", "tree/l"}


def test_modes_of_the_archive_cannot_make_files_unreadable_or_setuid(tmp_path: Path, make_sdist: MakeSdist) -> None:
    info, data = entry("tiny-1.0/tool")
    info.mode = 0o6000
    extract_sdist(make_sdist(members=[(info, data)]), "tiny-1.0", tmp_path / "tree")

    assert (tmp_path / "tree" / "tool").stat().st_mode & 0o7777 == 0o600


HOSTILE = {
    "absolute path": [entry("/etc/archwright-evil")],
    "parent folder": [entry("tiny-1.0/../../evil")],
    "sibling inside the scratch folder": [entry("tiny-1.0/../evil")],
    "second top folder": [entry("other-1.0/file")],
    "file at the top": [entry("file")],
    "symbolic link to an absolute path": [entry("tiny-1.0/link", tarfile.SYMTYPE, "/etc/passwd")],
    "symbolic link out": [entry("tiny-1.0/link", tarfile.SYMTYPE, "../../outside")],
    "symbolic link to the tree's neighbour": [entry("tiny-1.0/link", tarfile.SYMTYPE, "../neighbour")],
    "symbolic link to the tree's parent": [entry("tiny-1.0/link", tarfile.SYMTYPE, "..")],
    "link through a link": [
        entry("tiny-1.0/here", tarfile.SYMTYPE, "."),
        entry("tiny-1.0/here/link", tarfile.SYMTYPE, "../neighbour"),
    ],
    "hard link out": [entry("tiny-1.0/link", tarfile.LNKTYPE, "../../outside")],
    "hard link to an absolute path": [entry("tiny-1.0/link", tarfile.LNKTYPE, "/etc/passwd")],
    "file through a link out": [
        entry("tiny-1.0/link", tarfile.SYMTYPE, "../.."),
        entry("tiny-1.0/link/evil"),
    ],
    "device": [entry("tiny-1.0/null", tarfile.CHRTYPE)],
    "block device": [entry("tiny-1.0/disk", tarfile.BLKTYPE)],
    "pipe": [entry("tiny-1.0/pipe", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_c5_hostile_archives_are_refused_and_leave_nothing(
    members: list[tuple[tarfile.TarInfo, bytes]], tmp_path: Path, make_sdist: MakeSdist
) -> None:
    (tmp_path / "outside").write_text("untouched")
    archive = make_sdist(members=members)

    with pytest.raises(ArchwrightError) as caught:
        extract_sdist(archive, "tiny-1.0", tmp_path / "out" / "tree")

    assert caught.value.code == "AW203"
    assert archive.name in caught.value.found
    assert everything_in(tmp_path / "out") == set()
    assert (tmp_path / "outside").read_text() == "untouched"
    assert not (tmp_path / "evil").exists()
    assert not Path("/etc/archwright-evil").exists()


def test_c5_an_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, make_sdist: MakeSdist, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED", 100_000)
    archive = make_sdist(files={"zeros": "\0" * 200_000})
    assert archive.stat().st_size < 5_000, "a bomb is small until it is unpacked"

    with pytest.raises(ArchwrightError) as caught:
        extract_sdist(archive, "tiny-1.0", tmp_path / "out" / "tree")

    assert caught.value.code == "AW203"
    assert everything_in(tmp_path / "out") == set()


def test_c5_a_bomb_of_many_files_is_refused_too(
    tmp_path: Path, make_sdist: MakeSdist, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED", 100_000)
    archive = make_sdist(files={f"{i}": "\0" * 20_000 for i in range(10)})

    with pytest.raises(ArchwrightError) as caught:
        extract_sdist(archive, "tiny-1.0", tmp_path / "out" / "tree")

    assert caught.value.code == "AW203"


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_c5_a_truncated_archive_is_damaged_and_leaves_nothing(
    kept: float, tmp_path: Path, make_sdist: MakeSdist
) -> None:
    archive = make_sdist(files={str(i): os.urandom(500).hex() for i in range(50)})
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * kept)])

    with pytest.raises(ArchwrightError) as caught:
        extract_sdist(archive, "tiny-1.0", tmp_path / "out" / "tree")

    assert caught.value.code == "AW202"
    assert everything_in(tmp_path / "out") == set()


@pytest.mark.parametrize(
    "content",
    [b"<html>not found</html>", b"\x1f\x8b" + b"junk" * 50, gzip.compress(b"not a tar" * 200), gzip.compress(b"")],
    ids=["web page", "bad gzip", "no tar inside", "empty"],
)
def test_c5_what_is_no_archive_at_all_is_damaged(content: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "tiny-1.0.tar.gz"
    archive.write_bytes(content)

    with pytest.raises(ArchwrightError) as caught:
        extract_sdist(archive, "tiny-1.0", tmp_path / "out" / "tree")

    assert caught.value.code == "AW202"
    assert everything_in(tmp_path / "out") == set()


def test_a_file_where_a_folder_should_be_is_an_error_of_ours(tmp_path: Path, make_sdist: MakeSdist) -> None:
    archive = make_sdist(files={}, members=[entry("tiny-1.0/a"), entry("tiny-1.0/a/b")])

    with pytest.raises(ArchwrightError) as caught:
        extract_sdist(archive, "tiny-1.0", tmp_path / "out" / "tree")

    assert caught.value.code == "AW202"
    assert everything_in(tmp_path / "out") == set()


def test_an_existing_tree_is_not_overwritten(tmp_path: Path, make_sdist: MakeSdist) -> None:
    tree = tmp_path / "out" / "tree"
    tree.mkdir(parents=True)
    (tree / "mine").write_text("kept")

    with pytest.raises(OSError):
        extract_sdist(make_sdist(), "tiny-1.0", tree)

    assert everything_in(tmp_path / "out") == {"tree", "tree/mine"}


names = st.one_of(
    st.sampled_from(["tiny-1.0/a", "tiny-1.0", "tiny-1.0/../x", "/abs", "..", "tiny-1.0/a/b", "tiny-1.0/d/../e"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20).map(lambda text: f"tiny-1.0/{text}"),
)
kinds = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"S"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    entries=st.lists(st.tuples(names, kinds, names), max_size=6),
    flips=st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), max_size=4),
)
def test_c5_no_archive_whatsoever_escapes_or_ends_in_a_traceback(
    entries: list[tuple[str, bytes, str]], flips: list[tuple[int, int]]
) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, link in entries:
            info, data = entry(name, kind, link)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    content = bytearray(raw.getvalue())
    for position, value in flips:
        content[position % len(content)] = value
    with tempfile.TemporaryDirectory() as scratch:
        box = Path(scratch)
        archive = box / "tiny.tar.gz"
        archive.write_bytes(gzip.compress(bytes(content), compresslevel=1))
        tree = box / "out" / "tree"
        try:
            extract_sdist(archive, "tiny-1.0", tree)
        except ArchwrightError as error:
            assert error.code in ("AW202", "AW203")
            assert everything_in(box / "out") == set()
        else:
            for path in tree.rglob("*"):
                assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(tree))
            assert {path.name for path in (box / "out").iterdir()} == {"tree"}
        assert {path.name for path in box.iterdir()} == {"tiny.tar.gz", "out"}
