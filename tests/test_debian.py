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
from archwright.debian import can_provision, fetch_packages, keep_packages, kept_package, provision
from archwright.errors import ArchwrightError, Exit
from archwright.sources import sha256_of

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
    made = json.loads(record.read_text())
    assert set(made) == {"packages", "parts"}
    assert made["packages"] == made["parts"]["compiler"] | made["parts"]["sysroot"]


def tree(prefix: Path) -> dict[str, tuple[int, bytes | str]]:
    """What is in a prefix: each path with its mode, and its content or where it leads."""
    return {
        str(p.relative_to(prefix)): (p.lstat().st_mode, str(p.readlink()) if p.is_symlink() else p.read_bytes())
        for p in prefix.rglob("*")
        if p.is_symlink() or p.is_file()
    }


def test_the_packages_are_kept_by_hash(apt: Path, cache: Path) -> None:
    packages = provision().packages

    assert {p.name for p in (cache / "compilers" / "packages").glob("*.deb")} == {f"{d}.deb" for d in packages.values()}
    assert all(sha256_of(kept_package(digest)) == digest for digest in packages.values())


def test_c2_the_same_compiler_is_made_again_offline_and_without_apt(apt: Path, tmp_path: Path) -> None:
    first = provision()
    before = tree(first.cxx.parents[1])
    shutil.rmtree(first.cxx.parents[1])
    apt.unlink()
    (tmp_path / "bin" / "apt-get").unlink()

    assert provision(offline=True) == first
    assert tree(first.cxx.parents[1]) == before
    assert not (first.sysroot.parent / "compiler" / "usr" / "include").exists(), "what belongs to the sysroot only"
    assert not apt.exists()


@pytest.mark.parametrize("harm", ["rotten", "missing", "no list", "damaged list"])
def test_kept_packages_that_are_not_as_they_were_are_not_used(harm: str, apt: Path, cache: Path) -> None:
    first = provision()
    shutil.rmtree(first.cxx.parents[1])
    apt.unlink()
    deb = kept_package(first.packages["g++-14_1.0_amd64.deb"])
    (listed,) = (cache / "compilers" / "packages").glob("*.json")
    if harm == "rotten":
        deb.write_bytes(b"evil")
    elif harm == "missing":
        deb.unlink()
    elif harm == "no list":
        listed.unlink()
    else:
        listed.write_text("[]")

    with pytest.raises(ArchwrightError) as caught:
        provision(offline=True)
    assert caught.value.code == "AW304"

    assert provision() == first
    assert apt.exists(), "they were downloaded again"


def test_packages_of_another_machine_make_the_compiler(
    apt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = provision()
    parts = fetch_packages()
    folder = tmp_path / "bundle"
    folder.mkdir()
    for name, digest in made.packages.items():
        shutil.copy(kept_package(digest), folder / name)
    apt.unlink()
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(debian, "_source_files", list)
    assert not can_provision()

    keep_packages(parts, folder)

    assert can_provision()
    assert provision(offline=True).packages == made.packages
    assert not apt.exists()
    shutil.rmtree(folder)
    keep_packages(parts, folder)  # there is a compiler: nothing to do


def test_c5_a_package_that_was_tampered_with_is_not_kept(
    apt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = fetch_packages()
    folder = tmp_path / "bundle"
    folder.mkdir()
    for packages in parts.values():
        for name, digest in packages.items():
            shutil.copy(kept_package(digest), folder / name)
    (folder / "g++-14_1.0_amd64.deb").write_text("evil")
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "other"))

    with pytest.raises(ArchwrightError) as caught:
        keep_packages(parts, folder)

    assert caught.value.code == "AW201"
    with pytest.raises(ArchwrightError):
        provision(offline=True)


def test_a_compiler_from_before_packages_were_kept_stays_and_its_packages_are_downloaded(
    apt: Path, cache: Path
) -> None:
    made = provision()
    record = made.cxx.parents[1] / "provisioned.json"
    old = {"packages": {**made.packages, "g++-14_1.0_amd64.deb": "0" * 64}}
    record.write_text(json.dumps(old))
    shutil.rmtree(cache / "compilers" / "packages")
    said: list[str] = []

    parts = fetch_packages(report=said.append)

    assert all(kept_package(digest).is_file() for packages in parts.values() for digest in packages.values())
    assert json.loads(record.read_text()) == old
    assert [line for line in said if "others now" in line], "they differ from what the compiler was made of"
    with pytest.raises(ArchwrightError):
        (cache / "compilers" / "packages").rename(cache / "away")
        fetch_packages(offline=True)


def test_kept_packages_are_not_downloaded_again(apt: Path) -> None:
    parts = fetch_packages()
    apt.unlink()
    assert fetch_packages(offline=True) == parts
    assert not apt.exists()


def test_without_dpkg_deb_it_is_named(apt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_packages()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert not can_provision()

    with pytest.raises(ArchwrightError) as caught:
        provision(offline=True)

    assert caught.value.code == "AW304"
    assert "dpkg-deb" in caught.value.found
    assert "CXX" in caught.value.fix
