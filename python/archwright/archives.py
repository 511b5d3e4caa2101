"""Safe extraction of source archives."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import tarfile
import uuid
import zlib
from pathlib import Path

from .errors import ArchwrightError, fail
from .project import write_errors

__all__ = ["MAX_UNPACKED", "extract_sdist"]

#: Refuse archives that unpack to more than this many bytes (the largest of ours has 0.2 GB).
MAX_UNPACKED = 4 << 30
#: What the system says to entries that contradict each other or that cannot be file names.
_IMPOSSIBLE = frozenset(
    [errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR]
)


def extract_sdist(archive: Path, root: str, destination: Path) -> None:
    """Unpack the folder `root` of the .tar.gz `archive` as `destination`, completely or not at all.

    Raises AW202 for a damaged archive; AW203 for one with absolute paths, `..`, links out of the tree, devices, entries
    outside `root`, or more than `MAX_UNPACKED` bytes; AW308 when the disk fills up.
    """
    partial = destination.with_name(f".{destination.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        with write_errors(destination):
            partial.mkdir(parents=True)
            _unpack(archive, root, partial)
            (partial / root).rename(destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack(archive: Path, root: str, into: Path) -> None:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            total = 0
            for member in tar:
                total += member.size
                if total > MAX_UNPACKED:
                    raise _hostile(archive, f"more than {MAX_UNPACKED >> 30} GiB unpacked")
                parts = Path(member.name).parts
                if parts[:1] != (root,) or ".." in parts:
                    raise _hostile(archive, f"entry '{member.name}' outside '{root}/'")
                tar.extract(member, into, filter="data")
        _check_links(archive, into / root)
    except tarfile.FilterError as error:
        raise _hostile(archive, str(error)) from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, KeyError, ValueError, RecursionError) as error:
        raise _damaged(archive, str(error)) from error
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise
        raise _damaged(archive, f"an entry that cannot be unpacked: {error.strerror}") from error
    if not (into / root).is_dir():
        raise _damaged(archive, f"no folder '{root}' inside")


def _check_links(archive: Path, tree: Path) -> None:
    """The filter keeps links inside the scratch folder; they must stay inside the tree, which is moved out of it."""
    for path in tree.rglob("*"):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(tree)):
            raise _hostile(archive, f"link '{path.relative_to(tree)}' out of '{tree.name}/'")


def _hostile(archive: Path, what: str) -> ArchwrightError:
    return fail(
        "AW203",
        found=f"{archive.name}: {what}",
        needed="an archive whose entries all stay inside its own folder",
        why="unpacking it could overwrite files elsewhere",
        fix="delete it, and tell whoever runs the index or mirror that served it",
    )


def _damaged(archive: Path, what: str) -> ArchwrightError:
    return fail(
        "AW202",
        found=f"{archive.name}: {what}",
        needed="a complete .tar.gz archive",
        why="a truncated or damaged archive has no trustworthy content",
        fix="run the command again: the file is fetched anew",
    )
