"""Provisioning GCC from Debian's packages: with stand-ins for apt-get and dpkg-deb, and the real patchelf."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright import debian
from archwright.debian import can_provision, provision
from archwright.errors import ArchwrightError, Exit

Script = Callable[[str, str], Path]

pytestmark = pytest.mark.usefixtures("cache")

MACHINE = os.uname().machine
STANZAS = """\
# the machine's own mirror
Types: deb
URIs: http://mirror.invalid/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.invalid/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://vendor.invalid/tools
Suites: stable
Components: main
"""
LINES = """\
# deb http://old.invalid/debian bookworm main
deb [signed-by=/keys/a.gpg] http://mirror.invalid/debian bookworm main contrib
deb http://mirror.invalid/debian bookworm-updates main
deb http://mirror.invalid/debian-security bookworm-security main
deb-src http://mirror.invalid/debian bookworm main
deb http://vendor.invalid/tools stable main
"""


def test_stanzas_are_copied_with_the_suite_changed() -> None:
    text = debian._with_release(STANZAS, "trixie")

    assert text.count("Types: deb") == 2
    assert "Suites: trixie\n" in text
    assert "Suites: trixie-security\n" in text
    assert "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" in text
    assert "vendor.invalid" not in text
    assert "bookworm" not in text


def test_lines_are_copied_with_the_suite_changed() -> None:
    assert debian._with_release(LINES, "trixie").splitlines() == [
        "deb [signed-by=/keys/a.gpg] http://mirror.invalid/debian trixie main contrib",
        "deb http://mirror.invalid/debian-security trixie-security main",
    ]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "deb http://a.invalid/ubuntu noble main\n", "Types: deb\nSuites: noble\n"]
)
def test_a_source_of_another_system_is_left_alone(text: str) -> None:
    assert debian._with_release(text, "trixie") == ""


FAKE_APT = """\
set -e
cache= words=
for word in "$@"; do
    case "$word" in
        Dir::Cache=*) cache=${word#*=} ;;
        Dir::Etc::SourceParts=*) parts=${word#*=} ;;
        *=*|-*) ;;
        *) words="$words $word" ;;
    esac
done
echo "$words: $(cat "$parts"/* | grep -h Suites | tr '\\n' ' ')" >>"$LOG"
[ -z "$FAIL" ] || case "$words" in *"$FAIL"*) echo "E: Unable to locate package" >&2; exit 100 ;; esac
case "$words" in
    *install*)
        for name in $words; do
            [ "$name" = install ] || echo "$name" >"$cache/archives/${name}_1.0_amd64.deb"
        done
        echo libc6-dev >"$cache/archives/libc6-dev_1.0_amd64.deb" ;;
esac
"""
FAKE_DPKG = """\
set -e
name=$(cat "$2")
mkdir -p "$3/usr/share/doc/$name"
case "$name" in
    g++-14)
        mkdir -p "$3/usr/bin" "$3/usr/lib/gcc/$MACHINE-linux-gnu/14" "$3/usr/lib/$MACHINE-linux-gnu" "$3/usr/libexec"
        for tool in g++-14 gcc-14 ld as; do cp "$ELF" "$3/usr/bin/$MACHINE-linux-gnu-$tool"; done
        echo script >"$3/usr/libexec/notes.txt"
        echo old >"$3/usr/lib/gcc/$MACHINE-linux-gnu/14/libstdc++.so"
        cp "$LOADER" "$3/usr/lib/$MACHINE-linux-gnu/"
        cp "$LIBC" "$3/usr/lib/$MACHINE-linux-gnu/" ;;
    libc6-dev) mkdir -p "$3/usr/include"; echo >"$3/usr/include/stdio.h" ;;
esac
"""


@pytest.fixture
def apt(tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for apt-get and dpkg-deb whose compiler is the system's `echo`; returns apt's log."""
    echo = shutil.which("echo")
    lines = subprocess.run(["ldd", str(echo)], capture_output=True, text=True).stdout
    libraries = [Path(word) for word in lines.split() if word.startswith("/")]
    loader = next((p for p in libraries if p.name.startswith("ld-linux")), None)
    libc = next((p for p in libraries if p.name.startswith("libc.so")), None)
    if loader is None or libc is None:
        pytest.skip("needs a glibc system")
    script("apt-get", FAKE_APT)
    script("dpkg-deb", FAKE_DPKG)
    sources = tmp_path / "debian.sources"
    sources.write_text(STANZAS)
    monkeypatch.setattr(debian, "_source_files", lambda: [sources])
    monkeypatch.setattr(debian, "require_space", lambda *words: None)
    for name, value in {"ELF": echo, "LOADER": loader, "LIBC": libc, "MACHINE": MACHINE, "FAIL": ""}.items():
        monkeypatch.setenv(name, str(value))
    log = tmp_path / "apt.log"
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return log


def test_a_compiler_is_made_that_runs_with_its_own_libraries(apt: Path, cache: Path) -> None:
    made = provision()

    assert made.cxx.is_relative_to(cache)
    words = subprocess.run([made.cxx, "-c", "a.cpp"], capture_output=True, text=True, check=True).stdout
    assert f"--sysroot={made.sysroot}" in words
    assert "-fno-use-linker-plugin" in words
    assert words.rstrip().endswith("-c a.cpp"), "the wrapper hands its arguments on"
    headers = subprocess.run(
        ["ldd", *(made.cxx.parents[1] / "compiler" / "usr" / "bin").glob("*-g++-14")], text=True, capture_output=True
    )
    assert str(made.cxx.parents[1] / "compiler") in headers.stdout, "libc comes from the prefix"


def test_the_sysroot_is_the_older_release_and_the_compiler_the_newer(apt: Path) -> None:
    provision()

    update, compiler, again, sysroot = apt.read_text().splitlines()
    assert update.startswith(" update: Suites: trixie")
    assert compiler.startswith(" install g++-14: Suites: trixie")
    assert again.startswith(" update: Suites: bookworm")
    assert sysroot.startswith(" install libc6-dev libstdc++6 libdw-dev: Suites: bookworm")


def test_libc_headers_are_in_the_sysroot_only(apt: Path) -> None:
    made = provision()

    assert (made.sysroot / "usr" / "include" / "stdio.h").is_file()
    assert not (made.sysroot.parent / "compiler" / "usr" / "include").exists()


def test_what_the_older_libstdcxx_lacks_is_linked_from_the_archive(apt: Path) -> None:
    made = provision()

    script = next((made.sysroot.parent / "compiler").rglob("libstdc++.so")).read_text()
    assert f"INPUT ( =/usr/lib/{MACHINE}-linux-gnu/libstdc++.so.6 libstdc++.a )" in script


def test_every_package_is_recorded_with_its_hash(apt: Path) -> None:
    packages = provision().packages

    assert {"g++-14_1.0_amd64.deb", "libdw-dev_1.0_amd64.deb"} <= set(packages)
    assert all(len(digest) == 64 for digest in packages.values())


def test_the_second_time_nothing_is_downloaded(apt: Path) -> None:
    first = provision()
    apt.unlink()

    assert provision(offline=True) == first
    assert not apt.exists()


@pytest.mark.parametrize("step", ["update", "libdw-dev"])
def test_packages_that_cannot_be_fetched_are_aw304_and_a_rerun_works(
    step: str, apt: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", step)
    with pytest.raises(ArchwrightError) as caught:
        provision()

    assert caught.value.code == "AW304"
    assert caught.value.exit is Exit.UNFIT
    assert "Unable to locate package" in caught.value.found
    assert not list(cache.rglob("provisioned.json"))
    assert not list(cache.rglob("*.apt"))

    monkeypatch.setenv("FAIL", "")
    assert provision().cxx.is_file()


def test_a_prefix_that_was_half_made_is_made_again(apt: Path, cache: Path) -> None:
    prefix = provision().cxx.parents[1]
    (prefix / "provisioned.json").unlink()
    (prefix / "leftover").touch()

    assert provision().cxx.is_file()
    assert not (prefix / "leftover").exists()


def test_c2_offline_without_one_is_aw304(cache: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        provision(offline=True)

    assert caught.value.code == "AW304"
    assert "--offline" in caught.value.found


def test_a_system_without_apt_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(debian, "require_space", lambda *words: None)

    assert not can_provision()
    with pytest.raises(ArchwrightError) as caught:
        provision()

    assert caught.value.code == "AW304"
    assert "apt-get" in caught.value.found
    assert "dnf install gcc-toolset-14" in caught.value.fix


def test_a_debian_relative_without_a_known_release_cannot(apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "_source_files", list)

    with pytest.raises(ArchwrightError) as caught:
        provision()

    assert "no apt source entry" in caught.value.found


def test_the_record_is_plain_json(apt: Path, cache: Path) -> None:
    provision()
    (record,) = cache.rglob("provisioned.json")
    assert set(json.loads(record.read_text())) == {"packages"}
