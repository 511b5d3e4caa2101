"""An environment against its lock: every kind of drift is named, once, and nothing outside is read.

The environment is real: uv installs tiny wheels into two virtual environments, once; each test has a copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.contents import (
    Drift,
    DriftKind,
    check_contents,
    damaged_packages,
    drift_error,
    verify_halves,
)
from archwright.errors import Exit

from . import madeenv
from .madeenv import (
    HALVES,
    INIT,
    RECORD,
    SITE,
    VERSION,
    Made,
    record_hash,
    run_uv,
    write_package,
)

template = madeenv.template
made = madeenv.made

RUNTIME = "runtime"


def test_a_new_environment_is_as_locked(made: Made) -> None:
    assert made.check() == ()
    assert verify_halves(made.folder, HALVES) == ()


def test_what_python_compiles_is_no_drift(made: Made) -> None:
    command = [made.folder / "runtime" / "bin" / "python", "-c", "import alpha, nested.beta.one"]
    subprocess.run(command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}, check=True)

    assert list(made.site.glob("alpha/__pycache__/*.pyc"))
    assert made.check() == ()


#: What is done to one file, and the only drift that it makes: kind, half, package, path, and words of its line.
DRIFTS: dict[str, tuple[Callable[[Made], object], tuple[str, str, str, str, str]]] = {
    "a module is edited": (
        lambda m: (m.site / "alpha/__init__.py").write_text("value = 9\n"),
        ("modified file", RUNTIME, "alpha", INIT, "was changed: hash "),
    ),
    "a file without bytes gets some": (
        lambda m: (m.site / "beta.py").write_text("x"),
        ("modified file", RUNTIME, "beta", f"{SITE}/beta.py", "was changed"),
    ),
    "a module is removed": (
        lambda m: (m.site / "alpha/__init__.py").unlink(),
        ("missing file", RUNTIME, "alpha", INIT, "of alpha is missing"),
    ),
    "a script is edited": (
        lambda m: (m.folder / "runtime/bin/alpha-tool").open("a").write("exit 1\n"),
        ("modified file", RUNTIME, "alpha", "bin/alpha-tool", "was changed"),
    ),
    "a script cannot be run any more": (
        lambda m: (m.folder / "runtime/bin/alpha-tool").chmod(0o644),
        ("changed mode", RUNTIME, "alpha", "bin/alpha-tool", "not executable instead of executable"),
    ),
    "a module can be run": (
        lambda m: (m.site / "alpha/__init__.py").chmod(0o755),
        ("changed mode", RUNTIME, "alpha", INIT, "executable instead of not executable"),
    ),
    "a stray .pth": (
        lambda m: (m.site / "stray.pth").write_text("import os\n"),
        ("extra file", RUNTIME, "", f"{SITE}/stray.pth", "runs whenever this Python starts"),
    ),
    "a sitecustomize": (
        lambda m: (m.site / "sitecustomize.py").touch(),
        ("extra file", RUNTIME, "", f"{SITE}/sitecustomize.py", "runs whenever this Python starts"),
    ),
    "a file in a package's folder": (
        lambda m: (m.site / "alpha/more.py").touch(),
        ("extra file", RUNTIME, "", f"{SITE}/alpha/more.py", "was added: a file"),
    ),
    "a whole folder": (
        lambda m: [(m.site / "new/sub").mkdir(parents=True), *((m.site / f"new/sub/{n}").touch() for n in "abc")],
        ("extra file", RUNTIME, "", f"{SITE}/new/", "a folder with 3 files"),
    ),
    "a link to a folder outside": (
        lambda m: (m.site / "outside").symlink_to("/etc"),
        ("extra file", RUNTIME, "", f"{SITE}/outside", "a link to /etc"),
    ),
    "a link with the name of Python's cache": (
        lambda m: (m.site / "alpha/__pycache__").symlink_to("/etc"),
        ("extra file", RUNTIME, "", f"{SITE}/alpha/__pycache__", "a link to /etc"),
    ),
    "a pipe": (
        lambda m: os.mkfifo(m.site / "pipe"),
        ("extra file", RUNTIME, "", f"{SITE}/pipe", "neither a file nor a link"),
    ),
    "the settings of the virtual environment": (
        lambda m: (m.folder / "toolchain/pyvenv.cfg").write_text("include-system-site-packages = true\n"),
        ("modified file", "toolchain", "", "pyvenv.cfg", "was changed"),
    ),
    "a file that made the virtual environment": (
        lambda m: (m.folder / "runtime/bin/activate").unlink(),
        ("missing file", RUNTIME, "", "bin/activate", "is missing"),
    ),
    "another Python": (
        lambda m: ((m.folder / "runtime/bin/python").unlink(), (m.folder / "runtime/bin/python").symlink_to("/bin/sh")),
        ("changed link", RUNTIME, "", "bin/python", "a link to /bin/sh instead of a link to /"),
    ),
    "a link that becomes a file": (
        lambda m: ((m.folder / "cuda/include").unlink(), (m.folder / "cuda/include").touch()),
        ("changed link", "cuda", "", "include", "a file instead of a link to"),
    ),
    "another toolkit": (
        lambda m: ((m.folder / "cuda/include").unlink(), (m.folder / "cuda/include").symlink_to("/usr/include")),
        ("changed link", "cuda", "", "include", "a link to /usr/include"),
    ),
    "a file of no package that becomes a link": (
        lambda m: ((m.folder / "runtime/CACHEDIR.TAG").unlink(), (m.folder / "runtime/CACHEDIR.TAG").symlink_to("bin")),
        ("changed link", RUNTIME, "", "CACHEDIR.TAG", "a link to bin instead of a file"),
    ),
    "a script that becomes a link": (
        lambda m: (
            (m.folder / "runtime/bin/alpha-tool").unlink(),
            (m.folder / "runtime/bin/alpha-tool").symlink_to("activate"),
        ),
        ("changed link", RUNTIME, "alpha", "bin/alpha-tool", "a link to activate instead of a file"),
    ),
    "a link of the toolkit view is removed": (
        lambda m: (m.folder / "cuda/lib").unlink(),
        ("missing file", "cuda", "", "lib", "is missing"),
    ),
    "a stub of the toolkit view": (
        lambda m: (m.folder / "cuda/lib64/stubs/libcuda.so").write_bytes(b"other"),
        ("modified file", "cuda", "", "lib64/stubs/libcuda.so", "was changed"),
    ),
    "the list of a package's files": (
        lambda m: (m.folder / "runtime" / RECORD).open("a").write("\n"),
        ("modified file", RUNTIME, "alpha", RECORD, "was changed"),
    ),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_each_kind_of_drift_is_named_once(name: str, made: Made) -> None:
    change, (kind, half, package, path, words) = DRIFTS[name]

    change(made)

    drift = made.only()
    assert (str(drift.kind), drift.half, drift.package, drift.path) == (kind, half, package, path)
    assert words in str(drift)
    assert str(drift).startswith(f"{half}/{path}")


def test_a_file_that_becomes_a_link_is_not_followed(made: Made) -> None:
    # given a link to a file with the very content
    module = made.site / "alpha/__init__.py"
    shutil.copy(module, made.folder.parent / "copy.py")
    module.unlink()
    module.symlink_to(made.folder.parent / "copy.py")

    drift = made.only()

    assert (drift.kind, drift.path, drift.expected) == (DriftKind.CHANGED_LINK, INIT, "a file")
    assert verify_halves(made.folder, HALVES) == (drift,)


def test_a_pipe_in_a_files_place_is_not_read(made: Made) -> None:
    # given a pipe, and a link to a pipe: to open either would take forever
    for name, make in (("__init__.py", os.mkfifo), ("data/table.txt", lambda path: path.symlink_to("../__init__.py"))):
        (made.site / "alpha" / name).unlink()
        make(made.site / "alpha" / name)

    assert {(drift.kind, drift.found) for drift in made.check()} == {
        (DriftKind.CHANGED_LINK, "neither a file nor a link"),
        (DriftKind.CHANGED_LINK, "a link to ../__init__.py"),
    }


def test_a_folder_that_becomes_a_link_is_not_followed(made: Made) -> None:
    shutil.move(made.site / "alpha", made.folder.parent / "alpha")
    (made.site / "alpha").symlink_to(made.folder.parent / "alpha")

    found = {(drift.kind, drift.path) for drift in made.check()}

    assert found == {
        (DriftKind.MISSING_FILE, INIT),
        (DriftKind.MISSING_FILE, f"{SITE}/alpha/data/table.txt"),
        (DriftKind.EXTRA_FILE, f"{SITE}/alpha"),
    }


def test_a_file_and_its_hash_changed_together_are_noticed(made: Made) -> None:
    module, record = made.site / "alpha/__init__.py", made.folder / "runtime" / RECORD
    old, new = record_hash(module.read_bytes()), record_hash(b"value = 9\n")
    module.write_text("value = 9\n")
    record.write_text(record.read_text().replace(old, new))

    assert (made.only().kind, made.only().path) == (DriftKind.MODIFIED_FILE, RECORD)
    assert verify_halves(made.folder, HALVES) == ()  # which knows nothing but RECORDs


def test_a_drift_in_words(made: Made) -> None:
    (made.site / "alpha/__init__.py").write_text("value = 9\n")
    (made.site / "alpha/abc.py").touch()
    (made.folder / "cuda/lib").unlink()
    old, new = (hashlib.sha256(data).hexdigest()[:12] for data in (b"value = 1\n", b"value = 9\n"))

    drifts = made.check()

    assert list(map(str, drifts)) == [
        f"runtime/{INIT} of alpha was changed: hash {new}... instead of hash {old}...",
        "cuda/lib is missing",
        f"runtime/{SITE}/alpha/abc.py was added: a file",
    ]
    assert drifts[1].expected == "a link to lib64"
    assert str(Drift("x", DriftKind.CHANGED_MODE, "", "y", "abc", "f" * 63 + "g")).endswith(
        f"abc instead of {'f' * 63}g"
    )


def test_the_name_of_a_package_is_what_its_metadata_says(made: Made) -> None:
    names = json.loads((made.folder / "contents.json").read_text())["trees"]["runtime"]["packages"].values()
    assert [item["name"] for item in names] == ["alpha", "beta"]  # Alpha and Beta, as indexes compare them

    metadata = made.site / "alpha-1.0.dist-info/METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: Other.Name\nVersion: 5\n\nVersion: 6\n")

    assert ("extra package", "other-name", "5") in {(str(d.kind), d.package, d.found) for d in made.check()}


def test_a_package_without_metadata_has_the_name_of_its_folder(made: Made) -> None:
    # given a pipe in its place: to open it would take forever
    metadata = made.site / "alpha-1.0.dist-info/METADATA"
    metadata.unlink()
    os.mkfifo(metadata)

    assert [(drift.kind, drift.package) for drift in made.check()] == [(DriftKind.CHANGED_LINK, "alpha")]


# ------------------------------------------------------------------------------------------------ packages
def test_an_extra_package_is_one_drift(made: Made) -> None:
    made.uv("install", "gamma")

    assert made.only() == Drift("runtime", DriftKind.EXTRA_PACKAGE, "gamma", "", "3.0", "")
    assert str(made.only()) == "runtime: package gamma 3.0 is not in the lock"


def test_a_package_that_the_lock_has_no_more_is_extra(made: Made, tmp_path: Path) -> None:
    lock = tmp_path / "less.lock"
    lock.write_text("".join(line for line in made.locks["runtime"].open() if not line.startswith("beta")))

    drifts = check_contents(made.folder, {**made.locks, "runtime": lock})

    assert drifts == (Drift("runtime", DriftKind.EXTRA_PACKAGE, "beta", "", "2.0", ""),)


def test_one_half_can_be_compared_alone(made: Made) -> None:
    (made.folder / "toolchain" / SITE / "beta.py").unlink()

    assert check_contents(made.folder, made.locks, ["runtime"]) == ()
    assert len(check_contents(made.folder, made.locks, ["toolchain"])) == 1
    assert verify_halves(made.folder, ["runtime"]) == ()


def test_a_missing_package_is_one_drift(made: Made) -> None:
    made.uv("uninstall", "alpha")

    assert made.only() == Drift("runtime", DriftKind.MISSING_PACKAGE, "alpha", "", "", "1.0")
    assert str(made.only()) == "runtime: package alpha 1.0 is missing"


def test_another_version_is_one_drift(made: Made) -> None:
    made.uv("install", "alpha==1.1")

    assert made.only() == Drift("runtime", DriftKind.OTHER_VERSION, "alpha", "", "1.1", "1.0")
    assert str(made.only()) == "runtime: package alpha is 1.1 instead of 1.0"


def test_a_package_installed_again_with_other_files_is_noticed(made: Made, tmp_path: Path) -> None:
    # given another wheel of the very version, which brings its own list of hashes
    (tmp_path / "evil").mkdir()
    wheel = write_package(tmp_path / "evil", "alpha", "1.0", {"alpha/__init__.py": b"value = 666\n"})
    made.uv("install", "--reinstall", "--no-deps", wheel, cache=tmp_path / "cache")

    assert RECORD in {drift.path for drift in made.check()}


def test_a_second_list_of_an_honest_package_is_noticed(made: Made) -> None:
    # given a list under the name and version of a locked package, which claims a file that runs at every start
    shutil.copytree(made.site / "alpha-1.0.dist-info", made.site / "Alpha-1.0.dist-info")
    (made.site / "stray.pth").write_text("import os\n")
    row = f"stray.pth,{record_hash(b'import os' + bytes([10]))},10\n"
    (made.site / "Alpha-1.0.dist-info" / "RECORD").write_text(row)

    assert (DriftKind.EXTRA_PACKAGE, "alpha") in {(drift.kind, drift.package) for drift in made.check()}


def test_the_list_of_a_package_in_the_toolkit_view_explains_nothing(made: Made) -> None:
    # given a view in which lib is a folder
    (made.folder / "cuda" / "lib").unlink()
    info = made.folder / "cuda" / SITE / "alpha-1.0.dist-info"
    info.mkdir(parents=True)
    made.record()
    (info / "RECORD").write_text(f"x.pth,{record_hash(b'')},0\n")
    (info.parent / "x.pth").touch()

    assert {(drift.kind, drift.half) for drift in made.check()} == {(DriftKind.EXTRA_FILE, "cuda")}


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        (f'platform_machine == "{platform.machine()}"', True),
        ('platform_machine == "vax"', False),
        (f'python_full_version == "{VERSION}"', True),
        ('python_version >= "3.99"', False),
    ],
)
def test_markers_say_what_this_python_needs(marker: str, expected: bool, made: Made, tmp_path: Path) -> None:
    lock = tmp_path / "more.lock"
    lock.write_text(made.locks["runtime"].read_text() + f"gamma==3.0 ; {marker} --hash=sha256:{'a' * 64}\n")

    drifts = check_contents(made.folder, {**made.locks, "runtime": lock})

    assert [(drift.kind, drift.package) for drift in drifts] == [(DriftKind.MISSING_PACKAGE, "gamma")] * expected


def test_markers_are_those_of_the_environments_python(made: Made, tmp_path: Path) -> None:
    lock = tmp_path / "more.lock"
    lock.write_text(
        made.locks["runtime"].read_text() + f'gamma==3.0 ; python_version == "3.99" --hash=sha256:{"a" * 64}\n'
    )
    (made.folder / "env.json").write_text('{"python": "3.99.1"}')

    assert [d.package for d in check_contents(made.folder, {**made.locks, "runtime": lock})] == ["gamma"]


@pytest.mark.parametrize(
    ("locked", "installed", "same"),
    [
        ("1.0", "1.0+cu130", True),
        ("1.0+cu130", "1.0+cu130", True),
        ("1.0+cu132", "1.0+cu130", False),
        ("1.0", "1.0.1", False),
        ("1.0", "what", False),
    ],
)
def test_a_local_version_counts_when_the_lock_has_one(
    locked: str, installed: str, same: bool, made: Made, tmp_path: Path
) -> None:
    # given an environment that was made with that version
    info = made.site / "alpha-1.0.dist-info"
    stated = f"Metadata-Version: 2.1\nName: alpha\nVersion: {installed}\n"
    record = info / "RECORD"
    record.write_text(
        record.read_text().replace(record_hash((info / "METADATA").read_bytes()), record_hash(stated.encode()))
    )
    (info / "METADATA").write_text(stated)
    made.record()
    lock = tmp_path / "x.lock"
    lock.write_text(made.locks["runtime"].read_text().replace("alpha==1.0", f"alpha=={locked}"))

    drifts = check_contents(made.folder, {**made.locks, "runtime": lock})

    assert [drift.kind for drift in drifts] == ([] if same else [DriftKind.OTHER_VERSION])


def test_the_pip_of_python_m_venv_is_no_drift_and_a_later_one_is(made: Made) -> None:
    info = made.site / "pip-26.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pip\nVersion: 26.0\n")
    (info / "RECORD").write_text("pip-26.0.dist-info/METADATA,,\npip-26.0.dist-info/RECORD,,\n")

    assert [(drift.kind, drift.package) for drift in made.check()][:1] == [(DriftKind.EXTRA_PACKAGE, "pip")]

    made.record()
    assert made.check() == ()


# ------------------------------------------------------------------------------------------ words, and uv's cache
def test_the_error_counts_names_and_ends(made: Made) -> None:
    for number in range(60):
        (made.site / "alpha" / f"extra{number}.py").touch()
    (made.site / "alpha/__init__.py").unlink()
    drifts = made.check()

    error = drift_error(drifts, "sm100")

    assert error.code == "AW314"
    assert error.exit is Exit.CHECK_FAILED
    assert error.found.startswith(f"1 missing file, 60 extra files; first: runtime/{INIT} of alpha is missing")
    assert "`archwright env create sm100 --again`" in error.fix
    assert error.detail.splitlines()[-1] == "... and 21 more"
    assert len(error.detail.splitlines()) == 41
    assert drift_error(drifts[:1], "sm100").detail == str(drifts[0])
    assert drift_error(drifts[1:3], "sm100").found.startswith("2 extra files; first: ")


def test_a_drift_is_data(made: Made) -> None:
    (made.site / "alpha/__init__.py").write_text("value = 9\n")

    assert json.loads(json.dumps(made.only().as_dict())) == {
        "half": "runtime",
        "kind": "modified file",
        "package": "alpha",
        "path": INIT,
        "found": hashlib.sha256(b"value = 9\n").hexdigest(),
        "expected": hashlib.sha256(b"value = 1\n").hexdigest(),
    }


def test_the_name_of_a_file_cannot_steer_a_terminal(made: Made) -> None:
    (made.site / "bad\x1b[2J\n.py").touch()
    (made.site / os.fsdecode(b"not-utf8-\xff")).touch()
    (made.site / "schön.py").touch()

    assert list(map(str, made.check())) == [
        f"runtime/{SITE}/bad\\x1b[2J\\n.py was added: a file",
        f"runtime/{SITE}/not-utf8-\\udcff was added: a file",
        f"runtime/{SITE}/schön.py was added: a file",
    ]


def test_damage_in_uvs_cache_comes_back_and_is_found(template: Made, tmp_path: Path) -> None:
    """Why `create` verifies what uv installed: it links files from its cache without looking at them."""
    # given two environments that share a cache
    first, second = (Made(tmp_path / name, template.locks, template.wheels) for name in ("first", "second"))
    cache = tmp_path / "cache"
    for each in (first, second):
        run_uv("venv", "--python", sys.executable, each.folder / "runtime", cache=cache)
    first.uv("install", "alpha==1.0", cache=cache)
    module = first.site / "alpha/__init__.py"
    if module.stat().st_nlink < 2:
        pytest.skip("this file system has no hard links")

    # when a file of the first is edited in place
    with module.open("a") as file:
        file.write("broken = True\n")
    second.uv("install", "alpha==1.0", cache=cache)

    # then the second is damaged from the start
    (drift,) = verify_halves(second.folder, ("runtime",))
    assert (drift.kind, drift.package, drift.path) == (DriftKind.MODIFIED_FILE, "alpha", INIT)

    # and well after uv forgot its copy
    run_uv("cache", "clean", "alpha", cache=cache)
    second.uv("uninstall", "alpha", cache=cache)
    second.uv("install", "alpha==1.0", cache=cache)
    assert verify_halves(second.folder, ("runtime",)) == ()


def test_damaged_packages_are_told_as_far_as_they_can_be(made: Made) -> None:
    (made.site / "alpha/__init__.py").write_text("value = 9\n")
    (made.folder / "toolchain" / SITE / "beta.py").chmod(0o755)
    assert damaged_packages(made.folder, made.locks) == ("alpha", "beta")

    (made.folder / "contents.json").unlink()
    shutil.rmtree(made.folder / "toolchain")
    assert damaged_packages(made.folder, made.locks) == ("alpha",)

    shutil.rmtree(made.folder)
    assert damaged_packages(made.folder, made.locks) == ()
