"""Fixtures: an isolated cache, tiny source archives and recipes, stand-in programs, a made-up environment."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from archwright import components as components_module
from archwright import indexes
from archwright import sources as sources_module
from archwright.cli import main
from archwright.components import Component
from archwright.environment import Environment
from archwright.process import STRAY

ROOT = Path(__file__).resolve().parents[1]

# A shell starts background jobs with SIGINT ignored, and children inherit that: Ctrl-C could then not be tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def root() -> Path:
    """The project's own tree."""
    return ROOT


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's shell steers compilers, pip or uv."""
    for name in (*STRAY, *(n for n in os.environ if n.startswith(("PIP_", "UV_", "ARCHWRIGHT_")))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> Path:
    """An empty cache for this test alone, and an otherwise quiet environment."""
    path = tmp_path / "cache"
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(path))
    return path


@pytest.fixture
def pip_answers_at_once(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    """What `pip config list` would say of PIP_* variables, without half a second for each test.

    The real one is asked in test_indexes.py, and by the child processes of test_sources.py.
    """

    def settings() -> dict[str, str]:
        names = {name: name.removeprefix("PIP_").lower().replace("_", "-") for name in os.environ}
        return {names[name]: value for name, value in os.environ.items() if name.startswith("PIP_")}

    monkeypatch.setattr(indexes, "_pip_settings", settings)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write an executable shell script `<tmp>/bin/<name>` and return its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PATH holds nothing but the folder of stand-ins (and `cat`, which they use)."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "cat").symlink_to(str(shutil.which("cat")))
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture(scope="session")
def gcc() -> str:
    """The system's C compiler: for a few lines of C."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler on PATH")
    return found


def pack(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """A .tar.gz of exactly `members`; the same bytes every time."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


@pytest.fixture
def make_sdist(tmp_path: Path) -> Callable[..., Path]:
    """Write an sdist of `files` (and of further tar `members`) and return its path."""

    def make(
        name: str = "tiny-1.0",
        files: Mapping[str, str] | None = None,
        members: list[tuple[tarfile.TarInfo, bytes]] | None = None,
        folder: Path | None = None,
    ) -> Path:
        content = SOURCES if files is None else files
        entries = [(tarfile.TarInfo(f"{name}/{path}"), text.encode()) for path, text in content.items()]
        path = (folder or tmp_path / "index") / f"{name}.tar.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pack([*entries, *(members or [])]))
        return path

    return make


#: What the tiny upstream library consists of. Its setup.py leaves a trace when it is executed.
SOURCES = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "LICENSE": "free\n",
    "setup.py": "import os, pathlib\npathlib.Path(os.environ['TRACE']).write_text('executed')\n",
    "tiny/__init__.py": "value = 1\n",
    "csrc/api.cpp": "int api() { return 1; }\n",
}

TINY_MODULE = "tiny/_C.cpython-312-x86_64-linux-gnu.so"

RECIPE = """\
schema = 1
name = "tiny"
distribution = "tiny"
package = "tiny"
version = "1.0"
summary = "a library for tests"
license = "MIT"
extension = "tiny._C"
[source]
sha256 = "{sha256}"
root = "tiny-1.0"
expect = ["LICENSE", "tiny/__init__.py"]
[wheel]
max_mib = 1
requires = []
torch = true
licenses = ["LICENSE"]
expect = ["tiny/__init__.py", "tiny/_C.*.so"]
[[units]]
path = "csrc/api.cpp"
seconds = 1
mib = 100
[cells.sm100]
state = "build"
[cells.sm90]
state = "experimental"
[cells.ascend950]
state = "refused"
reason = "for tests"
"""

PATCH = """\
A patch

Reason: tests
Applies to: tiny 1.0

--- a/tiny/__init__.py
+++ b/tiny/__init__.py
@@ -1 +1,2 @@
 value = 1
+patched = True
"""


@pytest.fixture
def make_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Component]:
    """A project with one recipe, for the archive with `sha256`; `patches` are written beside it."""
    project = tmp_path / "project"
    components_module.components()  # what asks for all recipes gets the real ones, whichever test runs first
    monkeypatch.setattr(components_module, "project_root", lambda: project)

    def make(sha256: str, patches: Mapping[str, str] | None = None, text: str = RECIPE) -> Component:
        folder = project / "csrc" / "tiny"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "patches").mkdir(parents=True)
        for name, patch in (patches or {}).items():
            (folder / "patches" / name).write_text(patch)
        (folder / "component.toml").write_text(text.replace("{sha256}", sha256))
        return components_module._load(folder / "component.toml")

    return make


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> Path:
    """A folder that pip's configuration names as the only place to look for packages."""
    folder = tmp_path / "index"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def tiny(make_sdist: Callable[..., Path], make_recipe: Callable[..., Component], index: Path) -> Component:
    """The recipe of a tiny upstream library whose archive lies in `index`."""
    return make_recipe(sources_module.sha256_of(make_sdist(folder=index)))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """The record of a made-up environment of sm100; its folders exist and are empty."""
    path = tmp_path / "env"
    site = path / "runtime" / "lib" / "python3.12" / "site-packages"
    for folder in (path / "toolchain" / "bin", site / "torch", path / "cuda" / "bin"):
        folder.mkdir(parents=True)
    (path / "toolchain" / "bin" / "python").touch()
    return Environment(
        target="sm100",
        digest="d" * 64,
        path=path,
        toolchain=path / "toolchain",
        runtime=path / "runtime",
        toolkit=path / "cuda",
        python="3.12.1",
        nvcc="13.2.86",
        torch="2.13.0",
        nccl="2.32.3",
        nccl_root=site / "nvidia" / "nccl",
        cxx=Path("/usr/bin/g++"),
        cc=Path("/usr/bin/gcc"),
        gcc="14.2.0",
        compiler_origin="PATH",
        compiler_packages={},
        locks={"toolchain": "a" * 64, "runtime": "b" * 64},
    )


def write_wheel(
    path: Path, changes: Mapping[str, bytes] | None = None, *, tag: str = "", tamper: bytes = b"", without: str = ""
) -> Path:
    """Write a wheel of the tiny library, as its finished one looks, to `path`, whose name gives version and tag.

    `changes` adds or replaces members, the one called `without` is left out; `tamper` is appended to the module after
    RECORD was written.
    """
    name, version, tag_in_name = path.name.removesuffix(".whl").split("-", 2)
    info = f"{name}-{version}.dist-info"
    about = {"component": "tiny", "target": "sm100", "toolchain": {"nvcc": "13.2.86"}}
    files = {
        "tiny/__init__.py": b"value = 1\n",
        TINY_MODULE: b"module",
        f"{info}/METADATA": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag or tag_in_name}\n".encode(),
        f"{info}/archwright.json": json.dumps(about).encode(),
        **(changes or {}),
    }
    files.pop(without, None)
    rows = []
    for member, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{member},sha256={digest},{len(data)}")
    if tamper:
        files[TINY_MODULE] += tamper
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))
    return path


@pytest.fixture
def make_wheel() -> Callable[..., Path]:
    """`write_wheel`, for tests."""
    return write_wheel


@pytest.fixture
def patch_text() -> str:
    """A patch for the tiny library."""
    return PATCH


@pytest.fixture
def recipe_text() -> str:
    """The tiny library's recipe, with `{sha256}` for the hash."""
    return RECIPE


def isolation(*flags: str) -> list[str]:
    """The words that start a command in namespaces of its own; skips the test where that is not permitted."""
    command = ["unshare", *flags]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip(f"`{' '.join(command)}` is not permitted here")
    return command


@pytest.fixture
def no_network() -> list[str]:
    """Prefix of a command that runs without any network."""
    return isolation("-rn")


@pytest.fixture
def private_mounts() -> list[str]:
    """Prefix of a command that may mount file systems nobody else sees."""
    return isolation("-rm")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process: status, standard output, standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        status = main(list(words))
        out, err = capsys.readouterr()
        return status, out, err

    return call
