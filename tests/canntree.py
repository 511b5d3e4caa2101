"""Made-up trees of CANN in its three layouts. Their compilers are stand-ins that compile nothing."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Literal

import pytest

from archwright import cann

__all__ = ["LAYOUTS", "STAND_IN", "Layout", "activate", "arm", "good", "make_cann", "no_cann", "record"]

Layout = Literal["8.x", "9.1", "9.2"]

#: Each layout, with a version of its time and where its root lies below `.../Ascend`.
LAYOUTS: tuple[tuple[Layout, str, str], ...] = (
    ("8.x", "8.5.0.RC1", "ascend-toolkit/latest"),
    ("9.1", "9.1.0", "cann-9.1.0"),
    ("9.2", "9.2.0-beta.2", "cann-9.2.0-beta.2"),
)

#: What the compilers and linkers of these trees say; a test that wants to record calls writes its own in their place.
STAND_IN = "the recording stand-in of a test, not a compiler: it makes nothing"

#: A stand-in that notes its words, then writes a text where an object should be.
_RECORDER = """\
#!/bin/sh
echo "${ARCHWRIGHT_LAUNCHED:+launched }$(basename "$0") $*" >>'@log@'
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo '@stand-in@' >"$2"; shift; done
"""

#: One of the known places for each: which release has which is not documented.
_PROGRAMS: dict[Layout, str] = {
    "8.x": "{processor}-linux/ccec_compiler/bin",
    "9.1": "compiler/ccec_compiler/bin",
    "9.2": "tools/bisheng_compiler/bin",
}
_ASC: dict[Layout, str] = {"9.1": "compiler/tikcpp/ascendc_kernel_cmake", "9.2": "{processor}-linux/lib64/cmake"}


def make_cann(root: Path, version: str = "9.2.0", processor: str = "aarch64", layout: Layout = "9.2") -> Path:
    """Write the tree of a CANN and return its root.

    In layout 8.x `root` is `.../ascend-toolkit/latest`: a folder of links into `../<version>`, with set_env.sh beside
    it. Only the 9.x layouts hold the CMake package ASC.
    """
    own = root.parent / version if layout == "8.x" else root
    host = own / f"{processor}-linux"
    programs, asc = own / _PROGRAMS[layout].format(processor=processor), _ASC.get(layout)
    for folder in (host / "include", host / "asc" / "include", host / "lib64", programs):
        folder.mkdir(parents=True)
    (host / "include" / "acl.h").write_text("#define MADE_UP\n")
    (host / "lib64" / "libascendc_runtime.a").write_bytes(b"!<arch>\n")
    for name in ("bisheng", "ld.lld"):
        (programs / name).write_text(f"#!/bin/sh\necho '{name}: {STAND_IN}' >&2\nexit 1\n")
        (programs / name).chmod(0o755)
    (host / "ascend_toolkit_install.info").write_text(
        f"package_name=Ascend-cann-toolkit\nversion={version}\narch={processor}\nos=linux\npath={host}\n"
    )
    if asc:
        package = own / asc.format(processor=processor)
        package.mkdir(parents=True)
        (package / "asc-config.cmake").write_text("# made up\n")
    (own / "bin").symlink_to(programs.relative_to(own))
    for name in ("include", "lib64"):
        (own / name).symlink_to(f"{host.name}/{name}")
    if layout == "8.x":
        root.mkdir()
        for name in (host.name, "bin", "lib64"):
            (root / name).symlink_to(f"../{version}/{name}")
    script = (root.parent if layout == "8.x" else root) / "set_env.sh"
    script.write_text(
        f"export ASCEND_TOOLKIT_HOME={root}\n"
        "export LD_LIBRARY_PATH=${ASCEND_TOOLKIT_HOME}/lib64:$LD_LIBRARY_PATH\n"
        "export PATH=${ASCEND_TOOLKIT_HOME}/bin:$PATH\n"
        "export ASCEND_HOME_PATH=${ASCEND_TOOLKIT_HOME}\n"
    )
    return root


def record(found: cann.Cann, log: Path) -> None:
    """Let its compiler and its linker write down in `log` how they are called."""
    for program in (found.bisheng, found.ld_lld):
        assert program is not None
        program.write_text(_RECORDER.replace("@log@", str(log)).replace("@stand-in@", STAND_IN))


def activate(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sourcing its set_env.sh does."""
    for name in cann.VARIABLES:
        monkeypatch.setenv(name, str(root))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(root / "lib64"))
    monkeypatch.setenv("PATH", str(root / "bin"), prepend=":")


@pytest.fixture
def no_cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a CANN, whatever this one has; the folder that stands for the usual places."""
    for name in (*cann.VARIABLES, "BISHENG_HOME", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    top = tmp_path / "Ascend"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cann, "_SYSTEM", top)
    monkeypatch.setattr(cann, "_SYSTEM_RECORD", tmp_path / "etc" / "ascend_cann_install.info")
    return top


@pytest.fixture(autouse=True)
def arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most Ascend machines are."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")


@pytest.fixture
def good(no_cann: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole CANN 9.2.0 that is sourced."""
    root = make_cann(no_cann / "cann-9.2.0")
    activate(root, monkeypatch)
    return root
