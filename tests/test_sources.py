"""Fetching sources (cases C1, C2, C5): through the real finder, from a folder that pip's settings name."""

from __future__ import annotations

import base64
import http.server
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import archives
from archwright.components import Component
from archwright.errors import ArchwrightError, Exit
from archwright.sources import fetch, sha256_of

MakeSdist = Callable[..., Path]
MakeRecipe = Callable[..., Component]

pytestmark = pytest.mark.usefixtures("cache", "pip_answers_at_once")


def in_cache(cache: Path) -> set[str]:
    """Everything in the cache but lock files."""
    found = {p.relative_to(cache) for p in cache.rglob("*") if not p.name.endswith(".lock")}
    return {str(path) for path in found if path.parts[0] != "tables"}  # which tables were validated


def code_of(component: Component, *, offline: bool = False) -> str:
    with pytest.raises(ArchwrightError) as caught:
        fetch(component, offline=offline)
    return caught.value.code


def test_sources_are_fetched_by_name_and_kept(tiny: Component, cache: Path) -> None:
    tree = fetch(tiny)

    assert (tree.path / "tiny" / "__init__.py").read_text() == "value = 1\n"
    assert tree.path.is_relative_to(cache)
    assert (cache / "archives" / f"{tiny.sha256}.tar.gz").is_file()
    assert (tree.component, tree.version, tree.sha256, tree.patches) == ("tiny", "1.0", tiny.sha256, {})


def test_sources_are_found_in_an_index_of_folders(
    tmp_path: Path, make_sdist: MakeSdist, make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    simple = tmp_path / "simple"
    archive = make_sdist(folder=simple / "tiny")
    digest = sha256_of(archive)
    (simple / "tiny" / "index.html").write_text(f'<a href="{archive.name}#sha256={digest}">{archive.name}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", simple.as_uri())

    assert fetch(make_recipe(digest)).path.is_dir()


def test_nothing_of_upstream_is_executed(tiny: Component, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace"
    monkeypatch.setenv("TRACE", str(trace))

    tree = fetch(tiny)

    assert not trace.exists()
    subprocess.run([sys.executable, tree.path / "setup.py"], check=True)
    assert trace.read_text() == "executed", "the trap itself works"


def test_a_second_fetch_reads_only_the_cache(tiny: Component, index: Path) -> None:
    first = fetch(tiny)
    for archive in index.iterdir():
        archive.unlink()

    assert fetch(tiny) == first


def test_patches_are_applied_and_named(tiny: Component, make_recipe: MakeRecipe, patch_text: str) -> None:
    plain = fetch(tiny)
    patched = fetch(make_recipe(tiny.sha256, patches={"0001-a.patch": patch_text}))

    assert (patched.path / "tiny" / "__init__.py").read_text() == "value = 1\npatched = True\n"
    assert list(patched.patches) == ["0001-a.patch"]
    assert patched.path != plain.path
    assert (plain.path / "tiny" / "__init__.py").read_text() == "value = 1\n", "a finished tree is never changed"


@pytest.mark.parametrize(
    "change",
    [("value = 1", "value = 7"), ("tiny/__init__.py", "tiny/gone.py"), ("@@ -1 +1,2 @@", "@@ nonsense @@")],
    ids=["other content", "other file", "no patch at all"],
)
def test_a_patch_that_does_not_apply_is_aw205_and_leaves_no_tree(
    change: tuple[str, str], tiny: Component, make_recipe: MakeRecipe, patch_text: str, cache: Path
) -> None:
    component = make_recipe(tiny.sha256, patches={"0001-a.patch": patch_text.replace(*change)})

    with pytest.raises(ArchwrightError) as caught:
        fetch(component)

    assert caught.value.code == "AW205"
    assert "0001-a.patch" in caught.value.found
    assert list((cache / "sources").glob("tiny-1.0-*")) == []
    assert list((cache / "sources").glob(".*.staged")) == []


def test_c1_files_that_the_recipe_names_must_be_there(
    make_sdist: MakeSdist, make_recipe: MakeRecipe, index: Path, cache: Path
) -> None:
    archive = make_sdist(files={"LICENSE": "x", "tiny/__init__.py": ""}, folder=index)

    with pytest.raises(ArchwrightError) as caught:
        fetch(make_recipe(sha256_of(archive)))

    assert caught.value.code == "AW204"
    assert "csrc/api.cpp" in caught.value.found, "a missing translation unit is named"
    assert list((cache / "sources").glob("tiny-1.0-*")) == []


def test_c1_a_finished_tree_that_lost_a_file_is_noticed(tiny: Component) -> None:
    tree = fetch(tiny)
    (tree.path / "LICENSE").unlink()

    with pytest.raises(ArchwrightError) as caught:
        fetch(tiny)

    assert caught.value.code == "AW204"
    assert str(tree.path) in caught.value.fix


def test_c5_a_wrong_hash_leaves_nothing_and_a_rerun_works(
    tiny: Component, make_sdist: MakeSdist, index: Path, cache: Path
) -> None:
    good = next(index.iterdir()).read_bytes()
    served = make_sdist(files={"LICENSE": "tampered with"}, folder=index)

    with pytest.raises(ArchwrightError) as caught:
        fetch(tiny)

    assert caught.value.code == "AW201"
    assert caught.value.exit is Exit.CHECK_FAILED
    assert sha256_of(served) in caught.value.found
    assert tiny.sha256 in caught.value.needed
    assert in_cache(cache) == {"archives", "sources"}

    served.write_bytes(good)
    assert fetch(tiny).path.is_dir()


def test_c5_the_file_with_the_pinned_hash_is_preferred(
    tiny: Component, make_sdist: MakeSdist, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = next(index.iterdir())
    rebuilt = make_sdist(files={"LICENSE": "a second upload"}, folder=tmp_path / "other")
    page = tmp_path / "links.html"
    page.write_text("".join(f'<a href="{p.as_uri()}#sha256={sha256_of(p)}">{p.name}</a>' for p in (rebuilt, good)))
    monkeypatch.setenv("PIP_FIND_LINKS", page.as_uri())

    assert fetch(tiny).sha256 == sha256_of(good)


@pytest.mark.parametrize("state", ["half-written", "rotten", "empty"])
def test_c5_a_bad_archive_in_the_cache_is_fetched_anew(state: str, tiny: Component, cache: Path, index: Path) -> None:
    good = next(index.iterdir()).read_bytes()
    kept = cache / "archives" / f"{tiny.sha256}.tar.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes({"half-written": good[: len(good) // 2], "rotten": good[:-1] + b"x", "empty": b""}[state])

    assert fetch(tiny).path.is_dir()
    assert kept.read_bytes() == good


def test_c5_a_pinned_archive_that_is_truncated_is_aw202(
    make_sdist: MakeSdist, make_recipe: MakeRecipe, index: Path, cache: Path
) -> None:
    archive = make_sdist(files={str(i): os.urandom(200).hex() for i in range(20)}, folder=index)
    archive.write_bytes(archive.read_bytes()[:-500])

    assert code_of(make_recipe(sha256_of(archive))) == "AW202"
    assert not [name for name in in_cache(cache) if name.startswith("sources/")]


def test_c5_a_pinned_archive_that_is_hostile_is_aw203(
    make_sdist: MakeSdist, make_recipe: MakeRecipe, index: Path, cache: Path, tmp_path: Path
) -> None:
    archive = make_sdist(members=[(tarfile.TarInfo("tiny-1.0/../../../../evil"), b"x")], folder=index)

    assert code_of(make_recipe(sha256_of(archive))) == "AW203"
    assert not [name for name in in_cache(cache) if name.startswith("sources/")]
    assert not list(tmp_path.rglob("evil"))


def test_c5_a_pinned_bomb_is_aw203(tiny: Component, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED", 20)

    assert code_of(tiny) == "AW203"
    assert not [name for name in in_cache(cache) if name.startswith("sources/")]


@pytest.mark.parametrize("interrupted", ["sources/.{tree}.0a1b2c3d.staged", "archives/.{sha}.tar.gz.0a1b2c3d.partial"])
def test_c5_leftovers_of_a_run_that_was_killed_do_not_matter(interrupted: str, tiny: Component, cache: Path) -> None:
    leftover = cache / interrupted.format(tree="tiny-1.0-0", sha=tiny.sha256)
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("x")

    assert fetch(tiny).path.is_dir()


def test_aw206_a_package_that_the_index_lacks(tiny: Component, cache: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        fetch(replace(tiny, version="9.9"))

    assert caught.value.code == "AW206"
    assert caught.value.exit is Exit.UNFIT
    assert "tiny==9.9" in caught.value.found
    assert in_cache(cache) == {"archives", "sources"}


def test_aw206_a_wheel_is_no_source_archive(tiny: Component, index: Path) -> None:
    next(index.iterdir()).unlink()
    (index / "tiny-1.0-py3-none-any.whl").write_bytes(b"PK")

    assert code_of(tiny) == "AW206"


def test_aw206_no_index_and_no_links_means_nowhere(tiny: Component, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finder's own default index must not be asked when the user switched indexes off."""
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setattr("socket.socket.connect", _no_connections)

    with pytest.raises(ArchwrightError) as caught:
        fetch(tiny)

    assert caught.value.code == "AW206"
    assert "no source archive" in caught.value.found


def test_a_links_folder_that_is_not_there_is_passed_over(
    tiny: Component, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'unplugged'} {index}")

    assert fetch(tiny).path.is_dir()


def _no_connections(*address: object) -> None:
    raise AssertionError(f"the network was used: {address}")


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one project page and its archive; `cut` sends only half of the file and hangs up."""

    archive: Path
    cut = False
    status = file_status = 200
    password = ""

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(f"me:{self.password}".encode()).decode()
        if self.password and self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="mirror"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = b""
        if self.path.endswith(".tar.gz"):
            body = self.archive.read_bytes()
        elif self.path.rstrip("/").endswith("/tiny"):
            body = f'<a href="{self.archive.name}">{self.archive.name}</a>'.encode()
        self.send_response(self.file_status if self.path.endswith(".gz") else self.status)
        self.send_header("Content-Type", "application/gzip" if self.path.endswith(".gz") else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.cut and self.path.endswith(".gz") else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tiny: Component, index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    """A mirror on this machine, named as pip's index."""
    kind = type("Mirror", (Handler,), {"archive": next(index.iterdir())})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{running.server_port}/simple")
        monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")
        yield kind
        running.shutdown()


def test_c5_a_mirror_that_hangs_up_halfway_leaves_nothing_and_a_rerun_works(
    server: type[Handler], tiny: Component, cache: Path
) -> None:
    server.cut = True
    assert code_of(tiny) == "AW206"
    assert in_cache(cache) == {"archives", "sources"}

    server.cut = False
    assert fetch(tiny).path.is_dir()


def test_a_mirror_with_a_password_in_its_address_is_used(
    server: type[Handler], tiny: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.password = "secret"
    monkeypatch.setenv("PIP_INDEX_URL", os.environ["PIP_INDEX_URL"].replace("://", "://me:secret@"))

    assert fetch(tiny).path.is_dir()


@pytest.mark.parametrize("status", [403, 404, 500])
def test_aw206_a_mirror_that_refuses(status: int, server: type[Handler], tiny: Component, cache: Path) -> None:
    server.status = status

    assert code_of(tiny) == "AW206"
    assert in_cache(cache) == {"archives", "sources"}


def test_aw206_a_mirrors_password_is_not_shown(
    server: type[Handler], tiny: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.file_status = 403
    monkeypatch.setenv("PIP_INDEX_URL", os.environ["PIP_INDEX_URL"].replace("://", "://me:secret@"))

    with pytest.raises(ArchwrightError) as caught:
        fetch(tiny)

    assert caught.value.code == "AW206"
    assert "403" in caught.value.found
    assert "secret" not in str(caught.value)


def test_aw206_a_mirror_that_is_not_there(tiny: Component, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")

    assert code_of(tiny) == "AW206"


def test_c2_offline_with_an_empty_cache_is_aw207(tiny: Component, cache: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        fetch(tiny, offline=True)

    assert caught.value.code == "AW207"
    assert tiny.sha256 in caught.value.needed
    assert "archwright fetch tiny" in caught.value.fix


def test_c2_offline_a_rotten_archive_is_not_used(tiny: Component, cache: Path) -> None:
    kept = cache / "archives" / f"{tiny.sha256}.tar.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"rotten")

    assert code_of(tiny, offline=True) == "AW207"


FETCH = """
import pathlib, sys
import archwright.components as components
from archwright.errors import ArchwrightError
from archwright.sources import fetch
recipe = pathlib.Path(sys.argv[1])
components.project_root = lambda: recipe.parents[2]
try:
    print(fetch(components._load(recipe), offline=len(sys.argv) > 2).path)
except ArchwrightError as error:
    print(error.code)
"""


def run_fetch(prefix: list[str], component: Component, *flags: str) -> str:
    command = [*prefix, sys.executable, "-c", FETCH, str(component.folder / "component.toml"), *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_c2_offline_with_a_full_cache_works_without_any_network(
    tiny: Component, no_network: list[str], cache: Path
) -> None:
    tree = fetch(tiny)
    subprocess.run(["rm", "-r", tree.path], check=True)  # so that the archive is unpacked again

    assert run_fetch(no_network, tiny, "offline") == str(tree.path)
    assert (tree.path / "csrc" / "api.cpp").is_file()


def test_c5_a_disk_that_fills_up_leaves_nothing_half_written(
    tiny: Component,
    make_sdist: MakeSdist,
    make_recipe: MakeRecipe,
    index: Path,
    private_mounts: list[str],
    tmp_path: Path,
) -> None:
    big = make_sdist(files={"LICENSE": "x", "tiny/__init__.py": "", "csrc/api.cpp": "//" * 400_000}, folder=index)
    component = make_recipe(sha256_of(big))
    mount = tmp_path / "small"
    mount.mkdir()
    inside = f"""
mount -t tmpfs -o size=600k tmpfs {mount}
mkdir {mount}/archives && cp {big} {mount}/archives/{component.sha256}.tar.gz
export ARCHWRIGHT_CACHE={mount}
"$@"
find {mount}/sources ! -name '*.lock' -mindepth 1
mount -o remount,size=8m {mount}
"$@"
"""
    shell = [*private_mounts, "sh", "-ec", inside, "sh"]

    full, again = run_fetch(shell, component).splitlines()

    assert full == "AW308"
    assert again.startswith(str(mount)), "with room, the same command works (and nothing was listed in between)"


def test_c5_too_little_room_is_said_before_the_download(
    tiny: Component, private_mounts: list[str], tmp_path: Path
) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    inside = f'mount -t tmpfs -o size=600k tmpfs {mount}\nARCHWRIGHT_CACHE={mount} "$@"\nfind {mount} -name "*.tar.gz"'

    assert run_fetch([*private_mounts, "sh", "-ec", inside, "sh"], tiny) == "AW308"


def test_two_fetches_at_once_make_one_tree(tiny: Component, cache: Path) -> None:
    command = [sys.executable, "-c", FETCH, str(tiny.folder / "component.toml")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    paths = {process.communicate(timeout=60)[0] for process in both}

    assert len(paths) == 1
    assert len(list((cache / "sources").glob("tiny-1.0-*"))) == 1
