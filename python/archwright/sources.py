"""Fetching upstream's source archives: by package name and sha256, never executing anything in them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import ssl
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import filelock
import patch_ng
from httpx2 import HTTPError, RequestError

from .archives import extract_sdist
from .components import Component
from .errors import fail
from .indexes import index_settings
from .project import cache_dir, require_space, write_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unearth import Package, PackageFinder

__all__ = ["SourceTree", "fetch", "fetch_archive", "patch_digests", "sha256_of"]


@dataclass(frozen=True)
class SourceTree:
    """A verified, patched source tree. `patches` maps each patch's name to its sha256."""

    component: str
    version: str
    sha256: str
    path: Path
    patches: dict[str, str]


def patch_digests(component: Component) -> dict[str, str]:
    """The sha256 of each patch that the recipe carries, by name, in the order in which they are applied."""
    return {p.name: sha256_of(p) for p in sorted((component.folder / "patches").glob("*.patch"))}


def fetch(component: Component, *, offline: bool = False) -> SourceTree:
    """Return the component's source tree, from the cache or by downloading the archive.

    The archive is content-addressed (`archives/<sha256>.tar.gz`) and the tree's folder is keyed by the archive and the
    patches, so a finished tree is never changed. Raises AW201 to AW207 and AW308.
    """
    patches = patch_digests(component)
    key = hashlib.sha256(json.dumps([component.sha256, patches], sort_keys=True).encode()).hexdigest()[:16]
    tree = cache_dir() / "sources" / f"{component.root}-{key}"
    with write_errors(tree):
        tree.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(tree.parent / f".{tree.name}.lock"):
            if not tree.is_dir():
                _make_tree(component, tree, offline)
    _check_expected(component, tree)
    return SourceTree(component.name, component.version, component.sha256, tree, patches)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make_tree(component: Component, tree: Path, offline: bool) -> None:
    archive = fetch_archive(component, offline=offline)
    staged = tree.with_name(f".{tree.name}.{uuid.uuid4().hex[:8]}.staged")
    try:
        extract_sdist(archive, component.root, staged)
        _check_expected(component, staged)
        _apply_patches(component, staged)
        staged.rename(tree)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def fetch_archive(component: Component, *, offline: bool = False) -> Path:
    """The component's source archive in the cache, downloaded when it is not there (AW201, AW206, AW207, AW308)."""
    archive = cache_dir() / "archives" / f"{component.sha256}.tar.gz"
    if archive.is_file():
        if sha256_of(archive) == component.sha256:
            return archive
        archive.unlink()  # half-written or rotten: never used, fetched anew
    if offline:
        raise fail(
            "AW207",
            found=f"no {component.origin} {component.version} in {archive.parent}",
            needed=f"its source archive, sha256 {component.sha256}",
            why="--offline forbids the network",
            fix=f"run `archwright fetch {component.name}` once while there is a network",
        )
    require_space(archive, 1 << 30, f"the sources of {component.origin}")
    archive.parent.mkdir(parents=True, exist_ok=True)
    _download(component, archive)
    return archive


def _download(component: Component, archive: Path) -> None:
    from unearth import PackageFinder  # slow to import, and not needed when the cache has the file
    from unearth.errors import UnpackError
    from unearth.fetchers.sync import PyPIClient

    settings = index_settings()
    requirement = f"{component.origin}=={component.version}"
    verify: ssl.SSLContext | bool = (
        ssl.create_default_context(cafile=settings.certificate) if settings.certificate else True
    )
    finder = PackageFinder(
        session=PyPIClient(trusted_hosts=settings.trusted_hosts, verify=verify),  # type: ignore[arg-type]
        index_urls=() if settings.no_index else [u for u in (settings.index, *settings.extra) if u],
        find_links=[link for link in settings.find_links if "://" in link or Path(link).exists()],  # as pip does
        no_binary=[component.origin],
    )
    if settings.no_index:  # with no location at all the library would ask its default index
        finder.sources = [source for source in finder.sources if source["type"] == "find_links"]
    if settings.index is None and not settings.no_index and (settings.extra or settings.find_links):
        # extra locations alone would replace the library's default index instead of adding to it
        for source in PackageFinder().sources:
            finder.add_index_url(source["url"])
    try:
        package = _best(finder.find_matches(requirement), component)
        scratch = archive.with_name(f".{archive.name}.{uuid.uuid4().hex[:8]}.partial")
        scratch.mkdir()
        try:
            got = _save(finder, package, scratch)
            _check_hash(component, got)
            got.replace(archive)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except (HTTPError, RequestError, UnpackError, LookupError) as error:
        said = re.sub(r"//[^/\s]*@", "//", str(error).partition("\n")[0])  # a mirror's password stays out of it
        raise fail(
            "AW206",
            found=f"{requirement}: {said}",
            needed="its source archive from the configured package index",
            why="the sources are fetched at build time and never committed",
            fix="check the network, `pip config list` and the mirror; behind a proxy set HTTPS_PROXY",
        ) from error


def _best(matches: Iterable[Package], component: Component) -> Package:
    candidates = [p for p in matches if p.link.filename.endswith(".tar.gz")]
    pinned = [p for p in candidates if component.sha256 in (p.link.hash_option or {}).get("sha256", [])]
    if not candidates:
        raise LookupError("the index has no source archive of that version")
    return (pinned or candidates)[0]


def _save(finder: PackageFinder, package: Package, folder: Path) -> Path:
    """Stream the file into `folder` without unpacking or running it."""
    target = folder / package.link.filename
    if package.link.is_file:
        shutil.copyfile(package.link.file_path, target)
        return target
    with finder.session.get_stream(package.link.url_without_fragment) as response:
        response.raise_for_status()
        with target.open("wb") as file:
            for chunk in response.iter_bytes(1 << 20):
                file.write(chunk)
    return target


def _check_hash(component: Component, path: Path) -> None:
    digest = sha256_of(path)
    if digest != component.sha256:
        raise fail(
            "AW201",
            found=f"{path.name} ({path.stat().st_size} bytes) with sha256 {digest}",
            needed=f"sha256 {component.sha256}",
            why="another file than the reviewed one was served: a truncated download, a broken mirror, or tampering",
            fix="run it again; if it persists, compare the mirror's file with the index's and do not build from it",
        )


def _check_expected(component: Component, tree: Path) -> None:
    wanted = (*component.expect, *(unit.path for unit in component.source_units))
    missing = [name for name in wanted if not (tree / name).exists()]
    if missing:
        raise fail(
            "AW204",
            found=f"{tree.name} lacks {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}",
            needed=f"all {len(wanted)} files that {component.name}'s recipe names",
            why="an archive without its submodules fails deep inside a compile instead of here",
            fix=f"delete {tree} and run it again; if it persists the recipe does not fit this archive",
        )


def _apply_patches(component: Component, tree: Path) -> None:
    for path in sorted((component.folder / "patches").glob("*.patch")):
        patches = patch_ng.fromfile(str(path))  # type: ignore[no-untyped-call]
        if not patches or not patches.apply(strip=1, root=str(tree), fuzz=False):
            raise fail(
                "AW205",
                found=f"{path.name} on {component.origin} {component.version}",
                needed="a patch that applies exactly",
                why="a build without its patch is not the build that was tested",
                fix=f"regenerate csrc/{component.name}/patches/{path.name} for this upstream version",
            )
