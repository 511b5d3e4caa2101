"""Installing conda packages: verified, looked through, and nothing half-made is left."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.condainstall import install_conda, install_explicit
from archwright.condalock import read_conda_lock
from archwright.condaplatform import native_platform
from archwright.errors import ArchwrightError

from .channel import Channel, write_inputs


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    made = Channel(tmp_path_factory.mktemp("conda") / "channel")
    made.add("alpha", depends=["beta"], files={"bin/alpha": "#!/opt/nothing\n", "share/alpha": "alpha\n"})
    made.add("beta", files={"share/beta": "beta\n"})
    made.add("data", subdirs=["noarch"], files={"share/data": "data\n"})
    made.add("old", tar_bz2=True, files={"share/old": "old\n"})
    made.add("gpu", depends=["__cuda >=14"])
    made.add("future", depends=["__glibc >=2.99"])
    made.add("wide", depends=["__archspec * no_such_processor"])
    return made


@pytest.fixture
def channel(pristine: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Channel:
    """A copy to tamper with."""
    shutil.copytree(pristine.path, tmp_path / "channel")
    copied = Channel.__new__(Channel)
    copied.path = tmp_path / "channel"
    monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", copied.url)
    return copied


@pytest.fixture(autouse=True)
def no_conda(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CONDA_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def lock(channel: Channel, tmp_path: Path) -> Callable[..., Path]:
    """Write a lock of packages of the channel, as conda-lock does (test_condalock.py has the real one)."""

    def write(*names: str, virtual: dict[str, str] | None = None, platform: str = "linux-64") -> Path:
        entries = []
        for name in names:
            (path,) = [*channel.path.glob(f"{platform}/{name}-*"), *channel.path.glob(f"noarch/{name}-*")]
            index = {"gpu": {"__cuda": ">=14"}, "future": {"__glibc": ">=2.99"}, "wide": {"__archspec": ""}}.get(
                name, {}
            )
            entries.append(
                {
                    "name": name,
                    "version": "1.0",
                    "manager": "conda",
                    "platform": platform,
                    "dependencies": index,
                    "url": f"${{ARCHWRIGHT_CONDA_CHANNEL}}/{path.parent.name}/{path.name}",
                    "hash": {"md5": "", "sha256": sha256(path)},
                    "category": "main",
                    "optional": False,
                }
            )
        metadata = {"content_hash": {}, "channels": [], "platforms": [platform], "sources": ["environment.yml"]}
        folder = write_inputs(tmp_path / "sm100", "alpha", virtual)
        # JSON is YAML
        (folder / "conda-lock.yml").write_text(json.dumps({"version": 1, "metadata": metadata, "package": entries}))
        return folder / "conda-lock.yml"

    return write


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def nothing_left(prefix: Path) -> bool:
    return not prefix.exists() and not list(prefix.parent.glob(f".{prefix.name}.*"))


def test_an_installation_has_the_files_of_every_package(lock: Callable[..., Path], tmp_path: Path) -> None:
    prefix, said = tmp_path / "prefix", list[str]()

    count = install_conda(lock("alpha", "beta", "data", "old"), prefix, platform="linux-64", report=said.append)

    assert count == 4
    assert {p.name for p in (prefix / "share").iterdir()} == {"alpha", "beta", "data", "old"}
    assert len(list((prefix / "conda-meta").glob("*.json"))) == 4
    assert (prefix / "conda-meta" / "history").is_file()  # conda takes it for an environment
    record = json.loads((prefix / "conda-meta" / "beta-1.0-0.json").read_text())
    assert record["paths_data"]["paths"][0]["sha256"] == sha256(prefix / "share" / "beta")
    assert any("4 conda packages" in line for line in said)
    assert not list(tmp_path.glob(".prefix.*"))


def test_two_installations_do_not_share_files_with_each_other_or_the_cache(
    lock: Callable[..., Path], tmp_path: Path
) -> None:
    path = lock("beta")
    install_conda(path, tmp_path / "first", platform="linux-64")
    with (tmp_path / "first" / "share" / "beta").open("a") as file:
        file.write("edited")

    install_conda(path, tmp_path / "second", platform="linux-64")

    assert (tmp_path / "second" / "share" / "beta").read_text() == "beta\n"


def test_a_package_with_one_other_byte_is_named_with_both_hashes(
    lock: Callable[..., Path], channel: Channel, tmp_path: Path
) -> None:
    path = lock("alpha", "beta")
    victim = channel.path / "linux-64" / "beta-1.0-0.conda"
    locked = sha256(victim)
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)

    with pytest.raises(ArchwrightError) as caught:
        install_conda(path, tmp_path / "prefix", platform="linux-64")

    assert caught.value.code == "AW333"
    assert "beta-1.0-0.conda" in caught.value.found
    assert sha256(victim) in caught.value.found
    assert locked in caught.value.needed
    assert nothing_left(tmp_path / "prefix")


def test_a_wrong_hash_in_the_lock_is_no_less_an_error(lock: Callable[..., Path], tmp_path: Path) -> None:
    path = lock("beta")
    digest = read_conda_lock(path).entries[0].sha256
    path.write_text(path.read_text().replace(digest, "0" * 64))

    with pytest.raises(ArchwrightError, match="AW333"):
        install_conda(path, tmp_path / "prefix", platform="linux-64")

    assert nothing_left(tmp_path / "prefix")


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(
    lock: Callable[..., Path], channel: Channel, cache: Path, tmp_path: Path
) -> None:
    path = lock("beta")
    install_conda(path, tmp_path / "first", platform="linux-64")
    (cached,) = (cache / "conda" / "packages").rglob("*.conda")
    cached.write_bytes(b"damaged")

    install_conda(path, tmp_path / "second", platform="linux-64")
    cached.write_bytes(b"damaged")
    shutil.rmtree(channel.path)
    with pytest.raises(ArchwrightError, match="AW306"):
        install_conda(path, tmp_path / "third", platform="linux-64")

    assert (tmp_path / "second" / "share" / "beta").is_file()
    assert nothing_left(tmp_path / "third")


def test_offline_installs_what_was_fetched_and_says_what_was_not(
    lock: Callable[..., Path], channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_conda(lock("beta"), tmp_path / "first", platform="linux-64")
    monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", "http://127.0.0.1:9/channel")

    install_conda(lock("beta"), tmp_path / "second", platform="linux-64", offline=True)
    with pytest.raises(ArchwrightError) as caught:
        install_conda(lock("alpha", "beta"), tmp_path / "third", platform="linux-64", offline=True)

    assert (tmp_path / "second" / "share" / "beta").is_file()
    assert caught.value.code == "AW207"
    assert "no alpha-1.0-0.conda in" in caught.value.found
    assert nothing_left(tmp_path / "third")


def test_packages_may_be_fetched_over_http(
    lock: Callable[..., Path], channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock("alpha", "beta")
    with channel.served() as host:
        monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", f"http://{host}/")
        install_conda(path, tmp_path / "prefix", platform="linux-64")
        (channel.path / "noarch" / "data-1.0-0.conda").rename(tmp_path / "gone")
        with pytest.raises(ArchwrightError, match="AW306") as caught:
            url = f"http://user:secret@{host}/t/secret/noarch/data-1.0-0.conda"
            install_explicit(f"{url}#{'0' * 64}", tmp_path / "no", platform="linux-64")

    assert (tmp_path / "prefix" / "share" / "alpha").is_file()
    assert "404" in caught.value.detail
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("address", [None, "http://127.0.0.1:9/channel", "file:///no/such/channel"])
def test_a_channel_that_is_not_there_is_an_error(
    lock: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    path = lock("beta")
    if address is None:
        monkeypatch.delenv("ARCHWRIGHT_CONDA_CHANNEL")
    else:
        monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", address)

    with pytest.raises(ArchwrightError) as caught:
        install_conda(path, tmp_path / "prefix", platform="linux-64")

    assert caught.value.code == "AW306"
    assert ("ARCHWRIGHT_CONDA_CHANNEL is not set" if address is None else "beta-1.0-0.conda") in caught.value.found
    assert nothing_left(tmp_path / "prefix")


def test_a_lock_of_another_platform_is_refused(lock: Callable[..., Path], tmp_path: Path) -> None:
    foreign = "linux-aarch64" if native_platform() == "linux-64" else "linux-64"

    with pytest.raises(ArchwrightError) as caught:
        install_conda(lock("beta", platform=foreign), tmp_path / "prefix")

    assert caught.value.code == "AW317"
    assert native_platform() in caught.value.needed
    assert nothing_left(tmp_path / "prefix")


@pytest.mark.parametrize(
    ("package", "virtual", "override", "needed"),
    [
        ("future", {}, {}, "__glibc >=2.99"),
        ("beta", {"__glibc": "2.99"}, {}, "__glibc >=2.99"),
        ("beta", {}, {"CONDA_OVERRIDE_GLIBC": "2.17"}, "__glibc >=2.28"),
        ("beta", {}, {"CONDA_OVERRIDE_GLIBC": ""}, "__glibc >=2.28"),
        ("gpu", {}, {"CONDA_OVERRIDE_CUDA": "13.2"}, "__cuda >=14"),
        ("beta", {"__cuda": "13.0"}, {"CONDA_OVERRIDE_CUDA": "12.9"}, "__cuda >=13.0"),
        ("wide", {}, {}, "__archspec * no_such_processor"),
    ],
)
def test_a_virtual_package_that_this_machine_lacks_is_an_error(
    lock: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    virtual: dict[str, str],
    override: dict[str, str],
    needed: str,
) -> None:
    for name, value in override.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ArchwrightError) as caught:
        install_conda(lock(package, virtual=virtual), tmp_path / "prefix", platform="linux-64")

    assert caught.value.code == "AW318"
    assert needed in caught.value.needed
    assert nothing_left(tmp_path / "prefix")


@pytest.mark.parametrize("override", [{}, {"CONDA_OVERRIDE_CUDA": ""}])
def test_without_a_gpu_only_a_note_is_made(
    lock: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: dict[str, str]
) -> None:
    for name, value in override.items():
        monkeypatch.setenv(name, value)
    said: list[str] = []

    install_conda(lock("gpu", virtual={"__cuda": "99"}), tmp_path / "prefix", platform="linux-64", report=said.append)

    assert len([line for line in said if "__cuda" in line and "building works without" in line]) == 1


def test_link_scripts_are_reported_and_not_run(lock: Callable[..., Path], channel: Channel, tmp_path: Path) -> None:
    info = tarfile.TarInfo("bin/.script-post-link.sh")
    info.mode = 0o755
    channel.add_raw("script", [(info, b"#!/bin/sh\ntouch $PREFIX/ran\n")])
    said: list[str] = []

    install_conda(lock("script"), tmp_path / "prefix", platform="linux-64", report=said.append)

    assert not (tmp_path / "prefix" / "ran").exists()
    assert len([line for line in said if line.startswith("script has a link script")]) == 1


def test_pure_python_packages_go_where_the_locked_python_looks(channel: Channel, tmp_path: Path) -> None:
    (python,) = channel.add("python", "3.12.9", subdirs=["linux-64"], files={"bin/python3.12": "python\n"})
    (pure,) = channel.add(
        "pure", subdirs=["noarch"], depends=["python"], files={"site-packages/pure.py": "x = 1\n"}, noarch="python"
    )

    install_explicit(explicit(python, pure), tmp_path / "prefix", platform="linux-64")

    assert (tmp_path / "prefix" / "lib" / "python3.12" / "site-packages" / "pure.py").is_file()


@pytest.mark.parametrize("content", ["a file", "a folder with something in it"])
def test_a_prefix_that_exists_is_not_touched(lock: Callable[..., Path], tmp_path: Path, content: str) -> None:
    prefix = tmp_path / "prefix"
    kept = prefix if content == "a file" else prefix / "kept"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")

    with pytest.raises(ArchwrightError, match="AW306"):
        install_conda(lock("beta"), prefix, platform="linux-64")

    assert kept.read_text() == "mine"


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b"x" if kind == tarfile.REGTYPE else b""


def explicit(*packages: Path) -> str:
    return "\n".join(f"file://{package}#sha256:{sha256(package)}" for package in packages)


POINTS = {"package_metadata_version": 1, "noarch": {"type": "python", "entry_points": ["../../evil = os:getcwd"]}}


@pytest.mark.parametrize(
    ("entries", "listed", "link"),
    [
        ([entry("../evil")], None, None),
        ([entry("share/../../evil")], None, None),
        ([entry("/tmp/evil")], None, None),
        ([entry("share/fine")], ["../evil"], None),
        ([entry("out", tarfile.SYMTYPE, "../.."), entry("out/evil")], None, None),
        ([entry("out", tarfile.SYMTYPE, "/tmp"), entry("fine")], ["out/evil"], None),
        ([entry("a", tarfile.SYMTYPE, "b"), entry("b", tarfile.SYMTYPE, ".."), entry("a/evil")], None, None),
        ([entry("a", tarfile.SYMTYPE, "b"), entry("b", tarfile.SYMTYPE, "a"), entry("a/evil")], None, None),
        ([entry("passwd", tarfile.LNKTYPE, "../../etc/passwd")], None, None),
        ([entry("fine")], None, POINTS),
    ],
)
def test_a_package_that_would_write_outside_the_prefix_is_refused(
    channel: Channel,
    tmp_path: Path,
    entries: list[tuple[tarfile.TarInfo, bytes]],
    listed: list[str] | None,
    link: object,
) -> None:
    package = channel.add_raw("hostile", entries, paths=listed, link=link)

    with pytest.raises(ArchwrightError) as caught:
        install_explicit(explicit(package), tmp_path / "prefix", platform="linux-64")

    assert caught.value.code == "AW203"
    assert "hostile-1.0-0.conda" in caught.value.found
    assert nothing_left(tmp_path / "prefix")
    assert not list(tmp_path.rglob("evil"))


def test_a_package_may_not_write_through_the_link_of_another(channel: Channel, tmp_path: Path) -> None:
    first = channel.add_raw("first", [entry("share/out", tarfile.SYMTYPE, "../../..")])
    second = channel.add_raw("second", [entry("share/out/evil")])

    with pytest.raises(ArchwrightError, match="AW203"):
        install_explicit(explicit(second, first), tmp_path / "prefix", platform="linux-64")

    assert nothing_left(tmp_path / "prefix")


def test_links_inside_the_prefix_are_fine(channel: Channel, tmp_path: Path) -> None:
    first = channel.add_raw("first", [entry("lib/a.so"), entry("lib64", tarfile.SYMTYPE, "lib")], paths=["lib/a.so"])
    second = channel.add_raw("second", [entry("lib64/b.so")])

    assert install_explicit(explicit(first, second), tmp_path / "prefix", platform="linux-64") == 2

    assert (tmp_path / "prefix" / "lib" / "a.so").is_file()


@pytest.mark.parametrize("damage", [lambda data: b"no archive", lambda data: data[: len(data) // 2]])
def test_a_damaged_package_with_the_right_hash_is_named(
    channel: Channel, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    package = channel.path / "linux-64" / "beta-1.0-0.conda"
    package.write_bytes(damage(package.read_bytes()))

    with pytest.raises(ArchwrightError) as caught:
        install_explicit(explicit(package), tmp_path / "prefix", platform="linux-64")

    assert caught.value.code == "AW202"
    assert "beta-1.0-0.conda" in caught.value.found
    assert nothing_left(tmp_path / "prefix")


INSTALL = """\
import sys, pathlib
from archwright.condainstall import install_explicit
from archwright.errors import ArchwrightError
try:
    install_explicit(pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[2]), platform="linux-64")
except ArchwrightError as error:
    sys.exit(str(error))
"""


def test_ctrl_c_leaves_nothing_behind(channel: Channel, tmp_path: Path) -> None:
    """In the middle of linking: as soon as the first file is there."""
    package = channel.add_raw("many", [entry(f"share/{n % 100}/{n}") for n in range(8000)])
    (tmp_path / "list").write_text(explicit(package))
    prefix = tmp_path / "prefix"
    process = subprocess.Popen([sys.executable, "-c", INSTALL, tmp_path / "list", prefix], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (prefix / "share").is_dir() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    linking = (prefix / "share").is_dir() and process.poll() is None

    process.send_signal(signal.SIGINT)

    assert process.wait(60) != 0
    assert linking
    assert nothing_left(prefix)
    time.sleep(0.3)
    assert nothing_left(prefix)


def test_a_full_disk_leaves_nothing_behind(channel: Channel, private_mounts: list[str], tmp_path: Path) -> None:
    package = channel.add_raw("large", [(tarfile.TarInfo("share/large"), os.urandom(3 << 20))])
    (tmp_path / "list").write_text(explicit(package))
    small = tmp_path / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=2m none "$1" && shift && "$@"; status=$?; ls -A "$SMALL"; exit $status'
    command = [*private_mounts, "sh", "-c", script, "sh", small, sys.executable, "-c", INSTALL, tmp_path / "list"]

    result = subprocess.run(
        [*command, small / "prefix"], env=os.environ | {"SMALL": str(small)}, capture_output=True, text=True
    )

    assert result.returncode == 1
    assert result.stderr.startswith("AW308")
    assert result.stdout == ""
