"""Environments that are damaged, half there or hostile: what vouches for what, and when nothing can be said."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.contents import (
    Drift,
    DriftKind,
    record_contents,
    verify_halves,
)
from archwright.errors import ArchwrightError

from . import madeenv
from .madeenv import (
    HALVES,
    INIT,
    RECORD,
    SITE,
    Made,
    record_hash,
    rewrite_record,
)

template = madeenv.template
made = madeenv.made


# ------------------------------------------------------------------------------------- lists of a hostile package
@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b"/etc/hostname,sha256=x,1", "line 1 names '/etc/hostname', which is outside"),
        (b"../../../../outside.txt,sha256=x,1", "outside the prefix"),
        (b"../../../..,,", "outside the prefix"),
        (b"a/../../../../../outside.txt,sha256=x,1", "outside the prefix"),
        (b"a.py", "line 1 has 1 fields instead of 3"),
        (b"a.py,sha256=x,1,2", "line 1 has 4 fields"),
        (b"a.py,sha256=!!!!,1", "line 1 has no sha256 digest"),
        (b"a.py,sha256=,1", "line 1 has no sha256 digest"),
        (b"a.py,sha512=" + record_hash(b"").partition("=")[2].encode() + b",1", "line 1 has no sha512 digest"),
        (b'"a.py', "unexpected end"),
        (b"a\xff.py,,", "can't decode"),
        (b"a\0.py,,", ""),
    ],
)
def test_a_list_that_cannot_be_meant_is_drift_and_nothing_outside_is_read(row: bytes, words: str, made: Made) -> None:
    # given a pipe outside: to open it would take forever
    os.mkfifo(made.folder.parent / "outside.txt")
    rewrite_record(made, row)

    drifts = [drift for drift in verify_halves(made.folder, HALVES) if drift.path == RECORD]

    assert [(drift.kind, drift.package) for drift in drifts] == [(DriftKind.MODIFIED_FILE, "alpha")]
    assert words in drifts[0].found
    assert drifts[0] in made.check()


@pytest.mark.parametrize(
    "row", ["", f"alpha/__pycache__/gone.pyc,{record_hash(b'gone')},4", "alpha/__pycache__/x.pyc,,"]
)
def test_empty_lines_and_what_python_compiled_count_for_nothing(row: str, made: Made) -> None:
    rewrite_record(made, row.encode())

    assert verify_halves(made.folder, HALVES) == ()
    assert made.check() == ()


def test_a_script_is_listed_outside_of_site_packages_and_inside_of_the_prefix(made: Made) -> None:
    rows = csv.reader((made.folder / "runtime" / RECORD).read_text().splitlines())
    assert "../../../bin/alpha-tool" in [row[0] for row in rows]


@pytest.mark.parametrize("half", HALVES)
def test_a_package_without_its_list_is_named(half: str, made: Made) -> None:
    (made.folder / half / SITE / "beta-2.0.dist-info" / "RECORD").unlink()

    (drift,) = verify_halves(made.folder, HALVES)

    assert (drift.kind, drift.half, drift.package) == (DriftKind.MISSING_FILE, half, "beta")
    assert drift in [Drift(**{**d.as_dict(), "kind": d.kind, "expected": drift.expected}) for d in made.check()]


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/hostname"), os.mkfifo])
def test_a_list_that_is_no_file_is_not_read(make: Callable[[Path], None], made: Made) -> None:
    record = made.folder / "runtime" / RECORD
    record.unlink()
    make(record)

    assert [(d.kind, d.path) for d in verify_halves(made.folder, HALVES)] == [(DriftKind.CHANGED_LINK, RECORD)]
    assert (DriftKind.CHANGED_LINK, RECORD) in {(d.kind, d.path) for d in made.check()}


@pytest.mark.parametrize("path", ["runtime/bin/activate", "cuda/lib64/stubs/libcuda.so"])
def test_a_file_of_no_package_keeps_its_kind_and_its_mode(path: str, made: Made) -> None:
    file = made.folder / path
    file.chmod(0o755)
    drift = made.only()
    assert (drift.kind, f"{drift.half}/{drift.path}") == (DriftKind.CHANGED_MODE, path)
    assert (drift.found, drift.expected) == ("executable", "not executable")

    file.unlink()
    os.mkfifo(file)
    drift = made.only()
    assert (drift.kind, drift.found) == (DriftKind.CHANGED_LINK, "neither a file nor a link")


def test_a_stronger_hash_is_checked_too(made: Made) -> None:
    module = made.site / "alpha/__init__.py"
    record = made.folder / "runtime" / RECORD
    data = module.read_bytes()
    record.write_text(record.read_text().replace(record_hash(data), record_hash(data, "sha512")))
    made.record()
    assert made.check() == ()

    module.write_text("value = 9\n")

    assert [drift.path for drift in verify_halves(made.folder, HALVES)] == [INIT]


@pytest.mark.parametrize("entry", [",", "md5=abc,1"])
def test_a_file_that_its_package_does_not_vouch_for_is_vouched_for_by_the_record(entry: str, made: Made) -> None:
    (made.site / "alpha/made.txt").write_text("made at installation")
    rewrite_record(made, f"alpha/made.txt,{entry}".encode())
    assert made.check() == ()

    (made.site / "alpha/made.txt").write_text("edited")

    assert (made.only().kind, made.only().package) == (DriftKind.MODIFIED_FILE, "alpha")


def test_a_name_in_a_list_does_not_explain_a_file_that_comes_later(made: Made) -> None:
    rewrite_record(made, b"late.pth,,")
    assert made.check() == ()

    (made.site / "late.pth").write_text("import os\n")

    assert (made.only().kind, made.only().path) == (DriftKind.EXTRA_FILE, f"{SITE}/late.pth")


def test_a_file_of_two_packages_may_be_of_either(made: Made) -> None:
    # given both packages listing one file, with two hashes
    shared = made.site / "beta.py"
    rewrite_record(made, f"beta.py,{record_hash(b'of alpha')},8".encode())
    assert made.check() == ()

    shared.write_bytes(b"of alpha")
    assert made.check() == ()

    shared.write_bytes(b"of nobody")
    assert made.only().kind is DriftKind.MODIFIED_FILE


# ------------------------------------------------------------------------------------------------ contents.json
def test_the_record_is_the_same_every_time(made: Made, tmp_path: Path) -> None:
    before = (made.folder / "contents.json").read_bytes()
    other = tmp_path / "elsewhere" / made.folder.name
    shutil.copytree(made.folder, other, symlinks=True)

    made.record()
    assert (made.folder / "contents.json").read_bytes() == before
    assert record_contents(other, HALVES).read_bytes() == before
    assert not list(made.folder.glob("*.partial"))


def test_the_record_holds_what_no_list_does(made: Made) -> None:
    trees = json.loads((made.folder / "contents.json").read_text())["trees"]

    assert set(trees) == {"toolchain", "runtime", "cuda"}
    record = trees["runtime"]["packages"][RECORD]
    assert record["name"] == "alpha"
    assert record["version"] == "1.0"
    assert record["sha256"] == hashlib.sha256((made.folder / "runtime" / RECORD).read_bytes()).hexdigest()
    assert record["executable"] == ["bin/alpha-tool"]
    assert trees["cuda"]["files"]["lib"] == {"sha256": "", "link": "lib64", "executable": False}
    assert "pyvenv.cfg" in trees["runtime"]["files"]
    assert INIT not in trees["runtime"]["files"]
    assert trees["cuda"]["packages"] == {}


def test_an_environment_without_a_toolkit_view(made: Made) -> None:
    shutil.rmtree(made.folder / "cuda")
    made.record()
    assert made.check() == ()


# ---------------------------------------------------------------------------------- what cannot be compared: AW307
def incomplete(made: Made) -> str:
    with pytest.raises(ArchwrightError) as caught:
        made.check()
    assert caught.value.code == "AW307"
    assert "--again" in caught.value.fix
    return caught.value.found


@pytest.mark.parametrize("name", ["env.json", "contents.json", "runtime", "cuda"])
def test_half_an_environment_is_aw307(name: str, made: Made) -> None:
    path = made.folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    assert f"{path}: No such file or directory" in incomplete(made)


@pytest.mark.parametrize("name", ["env.json", "contents.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"schema": 99, "trees": {}}', "[" * 100_000, "\0"])
def test_a_damaged_record_is_aw307(name: str, text: str, made: Made) -> None:
    (made.folder / name).write_text(text)
    assert f"{made.folder / name} is damaged" in incomplete(made)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["trees"].pop("runtime"),
        lambda data: data["trees"]["runtime"].pop("files"),
        lambda data: data["trees"]["runtime"]["files"]["pyvenv.cfg"].update(more=1),
        lambda data: data["trees"]["runtime"].update(packages=[1]),
        lambda data: data.update(schema=0),
    ],
)
def test_a_record_that_lacks_something_is_aw307(change: Callable[[dict[str, object]], None], made: Made) -> None:
    path = made.folder / "contents.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))

    assert f"{path} is damaged" in incomplete(made)


def test_a_half_without_packages_is_aw307(made: Made) -> None:
    shutil.rmtree(made.site)
    assert "runtime has no package in it" in incomplete(made)


def test_a_python_that_was_removed_is_aw307(made: Made) -> None:
    # given an environment whose Python is then uninstalled
    python = made.folder / "runtime" / "bin" / "python"
    python.unlink()
    python.symlink_to(made.folder.parent / "uninstalled")
    made.record()

    assert "uninstalled, which is not there" in incomplete(made)


def test_a_link_to_a_missing_file_of_the_environment_is_no_reason_to_stop(made: Made) -> None:
    shutil.rmtree(made.folder / "toolchain" / SITE / "nested")

    assert {(drift.kind, drift.package) for drift in made.check()} == {(DriftKind.MISSING_FILE, "beta")}


@pytest.mark.parametrize("name", ["alpha/__init__.py", "alpha"])
def test_a_file_that_cannot_be_read_is_aw307(name: str, made: Made, root: Path) -> None:
    # given a file without any permission, and no privilege to read it all the same
    path = made.site / name
    mode = path.stat().st_mode
    path.chmod(0)
    drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    if drop and subprocess.run([*drop, "true"], capture_output=True).returncode:
        pytest.skip("privileges cannot be dropped here")
    code = (
        "import sys; from pathlib import Path; from archwright.contents import check_contents\n"
        "locks = {h: Path(sys.argv[2]) / f'{h}.lock' for h in ('toolchain', 'runtime')}\n"
        "check_contents(Path(sys.argv[1]), locks)"
    )
    command = [*drop, sys.executable, "-c", code, made.folder, made.locks["runtime"].parent]

    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(root / "python")}, capture_output=True, text=True
    )
    path.chmod(mode)

    assert "AW307" in result.stderr
    assert str(path) in result.stderr
    assert "Permission denied" in result.stderr
