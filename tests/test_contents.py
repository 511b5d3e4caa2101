"""An environment against its lock: every kind of drift is named, once, and nothing outside is read.

The environment is real: uv installs tiny wheels into two virtual environments, once; each test has a copy.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from uv import find_uv_bin

from archwright.contents import (
    Drift,
    DriftKind,
    check_contents,
    damaged_packages,
    drift_error,
    record_contents,
    verify_halves,
)
from archwright.errors import ArchwrightError, Exit

HALVES = ("toolchain", "runtime")
VERSION = platform.python_version()
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def record_hash(data: bytes, algorithm: str = "sha256") -> str:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{algorithm}={digest}"


def write_package(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> Path:
    """Write a wheel. A file below `*.data/scripts/` is installed into bin/."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.title()}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{member},{record_hash(data)},{len(data)}" for member, data in members.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))
    return path


def run_uv(*words: str | Path, cache: Path) -> None:
    """Run uv with a cache of its own, whatever the developer's shell or files say."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    env |= {"UV_CACHE_DIR": str(cache), "UV_LINK_MODE": "hardlink", "UV_PYTHON_DOWNLOADS": "never"}
    subprocess.run([find_uv_bin(), *words, "--quiet", "--no-config"], env=env, check=True)


@dataclass(frozen=True)
class Made:
    """An environment, its locks, and the wheels that it was made of."""

    folder: Path
    locks: dict[str, Path]
    wheels: Path

    @property
    def site(self) -> Path:
        return self.folder / "runtime" / SITE

    def uv(self, *words: str | Path, half: str = "runtime", cache: Path | None = None) -> None:
        where = ("--offline", "--no-index", "--find-links", self.wheels) if words[0] == "install" else ()
        run_uv("pip", *words, "--python", self.folder / half, *where, cache=cache or self.wheels / "cache")

    def check(self) -> tuple[Drift, ...]:
        return check_contents(self.folder, self.locks)

    def record(self) -> None:
        record_contents(self.folder, HALVES)

    def only(self) -> Drift:
        (drift,) = self.check()
        return drift


PACKAGES = {
    ("alpha", "1.0"): {
        "alpha/__init__.py": b"value = 1\n",
        "alpha/data/table.txt": b"1 2 3\n",
        "alpha-1.0.data/scripts/alpha-tool": b"#!/bin/sh\necho alpha\n",
    },
    ("alpha", "1.1"): {"alpha/__init__.py": b"value = 2\n"},
    ("beta", "2.0"): {"beta.py": b"", "nested/beta/one.py": b"one = 1\n", "nested/beta/two.py": b"two = 2\n"},
    ("gamma", "3.0"): {"gamma.py": b"gamma = 3\n", "gamma.pth": b"import gamma\n"},
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two virtual environments with the packages that their locks name."""
    root = tmp_path_factory.mktemp("template")
    (root / "wheels").mkdir()
    (root / "locks").mkdir()
    wheels = {key: write_package(root / "wheels", *key, files) for key, files in PACKAGES.items()}
    digests = {key: hashlib.sha256(wheel.read_bytes()).hexdigest() for key, wheel in wheels.items()}
    locks = {half: root / "locks" / f"{half}.lock" for half in HALVES}
    for half, keys in {"toolchain": [("beta", "2.0")], "runtime": [("alpha", "1.0"), ("beta", "2.0")]}.items():
        locks[half].write_text("".join(f"{n}=={v} --hash=sha256:{digests[n, v]}\n" for n, v in keys))
    made = Made(root / "env", locks, root / "wheels")
    for half in HALVES:
        run_uv("venv", "--python", sys.executable, made.folder / half, cache=made.wheels / "cache")
        made.uv("install", "--require-hashes", "--no-deps", "-r", locks[half], half=half)
    return made


@pytest.fixture
def made(template: Made, tmp_path: Path) -> Made:
    """A copy of the environment with a toolkit view, a record of its contents, and an env.json."""
    folder = tmp_path / "sm100-0123456789ab"
    shutil.copytree(template.folder, folder, symlinks=True)
    copy = Made(folder, template.locks, template.wheels)
    view = folder / "cuda"
    (view / "lib64" / "stubs").mkdir(parents=True)
    (view / "lib").symlink_to("lib64")
    (view / "include").symlink_to(folder / "toolchain" / SITE / "nested")
    (view / "lib64" / "stubs" / "libcuda.so").write_bytes(b"stub")
    copy.record()
    (folder / "env.json").write_text(json.dumps({"python": VERSION}))
    return copy


def test_a_new_environment_is_as_locked(made: Made) -> None:
    assert made.check() == ()
    assert verify_halves(made.folder, HALVES) == ()


def test_what_python_compiles_is_no_drift(made: Made) -> None:
    command = [made.folder / "runtime" / "bin" / "python", "-c", "import alpha, nested.beta.one"]
    subprocess.run(command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}, check=True)

    assert list(made.site.glob("alpha/__pycache__/*.pyc"))
    assert made.check() == ()


RUNTIME = "runtime"
INIT = f"{SITE}/alpha/__init__.py"
RECORD = f"{SITE}/alpha-1.0.dist-info/RECORD"

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


# ------------------------------------------------------------------------------------- lists of a hostile package
def rewrite_record(made: Made, row: bytes) -> Path:
    """Add `row` to alpha's RECORD, and record the environment as if it had been made so."""
    record = made.folder / "runtime" / RECORD
    record.write_bytes(row + b"\n" + record.read_bytes())
    made.record()
    return record


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

    lines = [str(drift) for drift in made.check()]

    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert "bad\\x1b[2J\\n.py" in lines[0]
    "\n".join(lines).encode()


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
