"""A small conda channel for tests: real packages, made by rattler-build's assembler and indexed by rattler."""

from __future__ import annotations

import functools
import http.server
import io
import json
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import zstandard

__all__ = ["Channel", "write_inputs"]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Channel:
    """A channel in a folder. `add` packages, then `index` it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "noarch").mkdir(parents=True)

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def add(
        self,
        name: str,
        version: str = "1.0",
        *,
        subdirs: Sequence[str] = ("linux-64", "linux-aarch64"),
        depends: Sequence[str] = (),
        files: Mapping[str, str] | None = None,
        build: str = "0",
        tar_bz2: bool = False,
        noarch: Literal["generic", "python"] = "generic",
    ) -> list[Path]:
        """Make one package per subdir, whose `files` are given as path -> text, and return the package files."""
        from rattler_build import ArchiveType, assemble_package

        staged = self.path.parent / "staged" / f"{name}-{version}-{build}"
        for path, text in (files or {}).items():
            (staged / path).parent.mkdir(parents=True, exist_ok=True)
            (staged / path).write_text(text)
            (staged / path).chmod(0o755 if path.startswith("bin/") else 0o644)
        return [
            assemble_package(
                name=name,
                version=version,
                target_platform=subdir,
                build_string=build,
                output_dir=self.path / subdir,
                files_dir=staged if files else None,
                depends=list(depends),
                noarch=noarch if subdir == "noarch" else None,
                timestamp=datetime(2026, 1, 1, tzinfo=UTC),
                compression_level=1,
                archive_type=ArchiveType.TarBz2 if tar_bz2 else ArchiveType.Conda,
            ).path
            for subdir in subdirs
        ]

    def add_raw(
        self,
        name: str,
        entries: Sequence[tuple[tarfile.TarInfo, bytes]],
        *,
        paths: Sequence[str] | None = None,
        link: object = None,
    ) -> Path:
        """Make a linux-64 package of exactly these tar entries: what no assembler would make.

        `paths` are what info/paths.json lists, by default the names of the entries.
        """
        listed = [info.name for info, _ in entries] if paths is None else paths
        index = {"name": name, "version": "1.0", "build": "0", "build_number": 0, "depends": [], "subdir": "linux-64"}
        about = {
            "info/index.json": index,
            "info/paths.json": {
                "paths_version": 1,
                "paths": [{"_path": path, "path_type": "hardlink", "size_in_bytes": 1} for path in listed],
            },
            **({"info/link.json": link} if link is not None else {}),
        }
        info_entries = [(tarfile.TarInfo(path), json.dumps(content).encode()) for path, content in about.items()]
        target = self.path / "linux-64" / f"{name}-1.0-0.conda"
        target.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("metadata.json", json.dumps({"conda_pkg_format_version": 2}))
            archive.writestr(f"pkg-{name}-1.0-0.tar.zst", _tar_zst(entries))
            archive.writestr(f"info-{name}-1.0-0.tar.zst", _tar_zst(info_entries))
        return target

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the channel on this machine, as `host:port`."""
        handler = functools.partial(_Quiet, directory=str(self.path))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
            yield f"127.0.0.1:{server.server_port}"
            server.shutdown()

    def index(self) -> None:
        # In a process of its own: see archwright.condalink, about the end of one that used py-rattler.
        program = "import asyncio, os, pathlib, sys; from rattler.index import index_fs; "
        program += "asyncio.run(index_fs(pathlib.Path(sys.argv[1]), write_shards=False, force=True)); os._exit(0)"
        subprocess.run([sys.executable, "-c", program, self.path], check=True)


def _tar_zst(entries: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for info, data in entries:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return zstandard.ZstdCompressor().compress(raw.getvalue())


def write_inputs(folder: Path, environment: str, virtual: Mapping[str, str] | None = None) -> Path:
    """Write environment.yml with these dependency lines, and virtual-packages.yml, to `folder`; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"  - {line}\n" for line in environment.splitlines())
    (folder / "environment.yml").write_text(f"channels:\n  - ${{ARCHWRIGHT_CONDA_CHANNEL}}\ndependencies:\n{lines}")
    packages = "".join(f'      {k}: "{v}"\n' for k, v in ({"__glibc": "2.28"} | dict(virtual or {})).items())
    subdirs = "".join(f"  {subdir}:\n    packages:\n{packages}" for subdir in ("linux-64", "linux-aarch64"))
    (folder / "virtual-packages.yml").write_text(f"subdirs:\n{subdirs}")
    return folder
