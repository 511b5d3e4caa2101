"""Our conda front end, asked by hand and by the real conda-lock."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from archwright.condaplatform import native_platform, satisfied, virtual_packages

from .channel import Channel, write_inputs

FRONT_END = [sys.executable, "-m", "archwright.condafront"]


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    """A channel with a package that needs others, two versions of one, a noarch one and one that needs a new driver."""
    made = Channel(tmp_path_factory.mktemp("conda") / "channel")
    made.add("alpha", depends=["beta >=1", "__glibc >=2.17"], files={"bin/alpha": "alpha\n"})
    made.add("beta", "1.1", files={"share/beta": "old\n"})
    made.add("beta", "1.2", files={"share/beta": "new\n"}, build="h1_1")
    made.add("data", subdirs=["noarch"], files={"share/data": "data\n"})
    made.add("gpu", depends=["__cuda >=14"])
    made.add("gamma", "1.0")
    made.add("gamma", "2.0", depends=["beta >=1.2"])
    made.index()
    return made


@pytest.fixture(autouse=True)
def no_conda(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's own conda."""
    for name in [name for name in os.environ if name.startswith("CONDA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CONDA_SUBDIR", "linux-64")
    monkeypatch.setenv("CONDA_OVERRIDE_GLIBC", "2.28")


@pytest.fixture
def ask() -> Any:
    """Call the front end: (exit status, its JSON)."""

    def call(*words: object) -> tuple[int, Any]:
        result = subprocess.run([*FRONT_END, *map(str, words)], capture_output=True, text=True, check=False)
        return result.returncode, json.loads(result.stdout)

    return call


def solve(ask: Any, channel: Channel, *specs: str) -> tuple[int, Any]:
    return ask("create", "--prefix", "/none", "--dry-run", "--json", "--channel", channel.url, *specs)


def test_a_solution_has_what_conda_lock_reads(ask: Any, channel: Channel) -> None:
    status, answer = solve(ask, channel, "alpha", "data 1.*")

    assert status == 0
    found = {action["name"]: action for action in answer["actions"]["FETCH"]}
    assert list(found) == ["alpha", "beta", "data"]
    assert [action["name"] for action in answer["actions"]["LINK"]] == list(found)
    beta = channel.path / "linux-64" / "beta-1.2-h1_1.conda"
    assert (found["beta"]["version"], found["beta"]["build"]) == ("1.2", "h1_1")
    assert found["beta"]["url"] == f"file://{beta}"
    assert found["beta"]["sha256"] == hashlib.sha256(beta.read_bytes()).hexdigest()
    assert found["beta"]["md5"] == hashlib.md5(beta.read_bytes()).hexdigest()
    assert found["alpha"]["depends"] == ["beta >=1", "__glibc >=2.17"]
    assert found["data"]["subdir"] == "noarch"


def test_the_platform_is_that_of_conda_subdir(ask: Any, channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_SUBDIR", "linux-aarch64")

    status, answer = solve(ask, channel, "beta")

    assert status == 0
    assert "/linux-aarch64/beta-1.2" in answer["actions"]["FETCH"][0]["url"]


@pytest.mark.parametrize(("cuda", "status"), [("14.1", 0), ("13.2", 1), ("", 1)])
def test_virtual_packages_are_those_of_the_overrides(
    ask: Any, channel: Channel, monkeypatch: pytest.MonkeyPatch, cuda: str, status: int
) -> None:
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", cuda)

    found, answer = solve(ask, channel, "gpu")

    assert found == status
    assert status == 0 or "__cuda >=14" in answer["message"]


@pytest.mark.parametrize(
    ("specs", "expected", "words"),
    [(["nothing"], 1, "nothing"), (["beta 9.*"], 1, "beta 9.*"), (["beta >>>"], 2, "beta >>>")],
)
def test_what_cannot_be_solved_is_said_in_condas_json(
    ask: Any, channel: Channel, specs: list[str], expected: int, words: str
) -> None:
    status, answer = solve(ask, channel, *specs)

    assert status == expected
    assert answer["success"] is False
    assert words in answer["message"]


def test_a_channel_that_is_not_there_is_named(ask: Any, tmp_path: Path) -> None:
    status, answer = ask("create", "-p", "/none", "--dry-run", "--json", "-c", f"file://{tmp_path}/no", "beta")

    assert status == 1
    assert f"{tmp_path}/no" in answer["message"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["update", "--all"], "invalid choice"),
        (["remove", "-p", "p", "beta"], "invalid choice"),
        (["create", "-p", "p", "-c", "file:///c", "beta"], "only --dry-run"),
        (["create", "-p", "p", "--dry-run", "beta"], "--channel"),
        (["create", "--dry-run", "-c", "file:///c", "beta"], "--prefix"),
        (["install", "-p", "p", "--file", "f"], "--file goes with"),
        (["create", "-p", "p", "--frobnicate"], "--frobnicate"),
    ],
)
def test_what_it_does_not_serve_it_refuses(ask: Any, words: list[str], reason: str) -> None:
    status, answer = ask(*words)

    assert status == 2
    assert reason in answer["message"]
    assert answer["exception_name"] == "CommandNotServed"


def test_it_says_its_version_without_loading_a_solver() -> None:
    result = subprocess.run([*FRONT_END, "--version"], capture_output=True, text=True, check=True)

    assert result.stdout.startswith("archwright-conda ")


def test_info_names_the_platform_and_its_virtual_packages(ask: Any) -> None:
    status, answer = ask("info", "--json")

    assert (status, answer["platform"]) == (0, "linux-64")
    assert ["__glibc", "2.28", "0"] in answer["virtual_pkgs"]


def test_an_explicit_list_is_installed_and_listed(ask: Any, channel: Channel, tmp_path: Path) -> None:
    beta = channel.path / "linux-64" / "beta-1.1-0.conda"
    explicit = tmp_path / "list"
    explicit.write_text(f"# a comment\n@EXPLICIT\nfile://{beta}#{hashlib.md5(beta.read_bytes()).hexdigest()}\n")

    status, answer = ask("create", "--quiet", "--file", explicit, "--yes", "--prefix", tmp_path / "prefix")

    assert (status, answer["packages"]) == (0, 1)
    assert (tmp_path / "prefix" / "share" / "beta").read_text() == "old\n"
    status, listed = ask("list", "--no-pip", "-p", tmp_path / "prefix", "--json")
    assert [(p["name"], p["version"], p["dist_name"]) for p in listed] == [("beta", "1.1", "beta-1.1-0")]


def test_an_explicit_list_is_checked_against_its_md5(ask: Any, channel: Channel, tmp_path: Path) -> None:
    """py-rattler alone would install a local file with any hash."""
    explicit = tmp_path / "list"
    explicit.write_text(f"{channel.url}/linux-64/beta-1.1-0.conda#{'0' * 32}\n")

    status, answer = ask("create", "--file", explicit, "--yes", "--prefix", tmp_path / "prefix")

    assert (status, answer["exception_name"]) == (1, "AW333")
    assert not (tmp_path / "prefix").exists()


@pytest.mark.parametrize("suffix", ["", "#", "#abc", f"#{'0' * 40}"])
def test_an_explicit_list_without_hashes_is_refused(ask: Any, channel: Channel, tmp_path: Path, suffix: str) -> None:
    explicit = tmp_path / "list"
    explicit.write_text(f"@EXPLICIT\n{channel.url}/linux-64/beta-1.1-0.conda{suffix}\n")

    status, answer = ask("create", "--file", explicit, "--yes", "--prefix", tmp_path / "prefix")

    assert (status, answer["exception_name"]) == (1, "AW319")
    assert not (tmp_path / "prefix").exists()


def test_solving_again_keeps_what_was_not_named(ask: Any, channel: Channel, tmp_path: Path) -> None:
    """As `conda install` does: beta stays at 1.1 although 1.2 is there, unless what is named needs the newer one."""
    meta = tmp_path / "prefix" / "conda-meta"
    meta.mkdir(parents=True)
    for name, version in (("beta", "1.1"), ("gamma", "1.0")):
        record = {"name": name, "version": version, "build": "0", "channel": channel.url, "subdir": "linux-64"}
        (meta / f"{name}-{version}-0.json").write_text(json.dumps(record))
    words = ["install", "--channel", channel.url, "-p", tmp_path / "prefix", "--json", "--dry-run"]

    _, small = ask(*words, "data")
    _, named = ask(*words, "beta")
    _, large = ask(*words, "gamma >=2")

    assert [p["name"] for p in small["actions"]["FETCH"]] == ["data"]
    assert [(p["name"], p["version"]) for p in named["actions"]["LINK"]] == [("beta", "1.2")]
    assert [(p["name"], p["version"]) for p in large["actions"]["LINK"]] == [("beta", "1.2"), ("gamma", "2.0")]


@pytest.fixture
def executable(tmp_path: Path) -> Path:
    """The front end as the one file that conda-lock wants."""
    path = tmp_path / "archwright-conda"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m archwright.condafront "$@"\n')
    path.chmod(0o755)
    return path


def conda_lock(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conda_lock", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_real_conda_lock_locks_updates_and_installs_with_it(
    channel: Channel, executable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lock with an old beta, because the specification asked for it
    monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", channel.url)
    folder = write_inputs(tmp_path / "inputs", "alpha\nbeta 1.1\ngamma")
    given = ["--conda", executable, "--virtual-package-spec", "virtual-packages.yml", "-p", "linux-64"]
    made = conda_lock(folder, "lock", *given, "-f", "environment.yml")
    assert made.returncode == 0, made.stderr
    write_inputs(folder, "alpha\nbeta\ngamma")

    # When conda-lock updates beta alone
    updated = conda_lock(folder, "lock", *given, "-f", "environment.yml", "--update", "beta")

    # Then it is the new one, and conda-lock installs all of it
    assert updated.returncode == 0, updated.stderr
    text = (folder / "conda-lock.yml").read_text()
    assert "beta-1.2-h1_1.conda" in text
    assert "gamma-1.0-0.conda" in text
    installed = conda_lock(folder, "install", "--conda", executable, "-p", tmp_path / "prefix", "conda-lock.yml")
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "prefix" / "share" / "beta").read_text() == "new\n"


def test_a_channel_may_be_served_over_http(ask: Any, channel: Channel) -> None:
    with channel.served() as host:
        words = ["create", "-p", "/none", "--dry-run", "--json", "-c", f"http://{host}", "alpha"]
        status, answer = ask(*words)

    offline, _ = ask(*words, "--offline")

    assert (status, len(answer["actions"]["FETCH"])) == (0, 2)
    assert answer["actions"]["FETCH"][0]["url"].startswith(f"http://{host}/linux-64/")
    assert offline == 0  # from what the first one kept


def test_offline_asks_no_server(ask: Any) -> None:
    words = ["create", "-p", "/none", "--dry-run", "--json", "-c", "http://127.0.0.1:9/x", "alpha"]

    _, online = ask(*words)
    status, offline = ask(*words, "--offline")

    assert "refused" in online["message"]
    assert status == 1
    assert "cache" in offline["message"]


def test_virtual_packages_are_detected_and_can_be_taken_away() -> None:
    detected = {name for name, _, _ in virtual_packages(native_platform(), {})}
    without = {name for name, _, _ in virtual_packages(native_platform(), {"CONDA_OVERRIDE_GLIBC": ""})}

    assert {"__unix", "__linux", "__glibc", "__archspec"} <= detected
    assert detected - without == {"__glibc"}


def test_overrides_can_add_what_nobody_detects() -> None:
    found = virtual_packages("linux-64", {"CONDA_OVERRIDE_CANN": "9.1", "CONDA_OVERRIDE_ARCHSPEC": "x86_64_v3"})

    assert ("__cann", "9.1", "0") in found
    assert ("__archspec", "1", "x86_64_v3") in found


@pytest.mark.parametrize(
    ("constraint", "expected"), [("", True), (">=2.28", True), (">=2.17,<3.0.a0", True), (">=2.99", False)]
)
def test_a_constraint_is_compared_as_conda_does(constraint: str, expected: bool) -> None:
    assert satisfied("__glibc", constraint, (("__glibc", "2.28", "0"),)) is expected
