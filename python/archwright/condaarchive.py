"""Looking through conda packages before they are unpacked: nothing of them may land outside the prefix.

A hash says that a file is the one that was locked, not that it is harmless. What an installer writes comes from the
archive's entries, from info/paths.json and from the entry points in info/link.json; links that other packages bring are
followed in thought, because packages share one prefix.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import ArchwrightError, fail

__all__ = ["look_through"]

_SCRIPT = re.compile(r"bin/\.(.+)-(?:pre|post)-link\.sh")


async def look_through(
    paths: Sequence[Path], report: Callable[[str], None] = lambda message: None
) -> list[tuple[str, str, str]]:
    """Return (package file, virtual package, constraint) for each that the packages need. Reports link scripts.

    Raises AW202 for a damaged archive and AW203 for a hostile one.
    """
    from rattler.package_streaming import PackageArchive

    links: dict[str, str] = {}
    written: list[tuple[Path, str]] = []
    needs: list[tuple[str, str, str]] = []
    for path in paths:
        try:
            archive = await PackageArchive.from_path(path)
            index = await archive.index_json()
            for section in ("info", "pkg"):
                async for entry in archive.stream(section):
                    written.append((path, entry.name))
                    if entry.is_symlink and entry.link_target is not None:
                        links[posixpath.normpath(entry.name)] = entry.link_target
                    elif entry.is_hardlink and entry.link_target is not None:
                        written.append((path, entry.link_target))
            written += [(path, str(item.relative_path)) for item in (await archive.paths_json()).paths]
            written += [(path, name) for name in _commands(await archive.read_file("info/link.json"))]
        except Exception as error:  # py-rattler's errors have no common base class
            if "invalid package-relative archive path" in str(error):  # it refuses absolute names and `..` itself
                raise _hostile(path, str(error).rpartition(": ")[2]) from error
            raise fail(
                "AW202",
                found=f"{path.name}: {error}",
                needed="a .conda or .tar.bz2 package",
                why="the file has the locked hash, so it was damaged before it was locked",
                fix="tell whoever runs the channel; lock again without this build of the package",
            ) from error
        needs += [(path.name, *_split(spec)) for spec in index.depends if spec.startswith("__")]
    for path, name in dict.fromkeys(written):
        if script := _SCRIPT.fullmatch(name):
            report(f"{script[1]} has a link script, which is not run: see docs/conda.md")
        if _leaves(name, links):
            raise _hostile(path, name)
    return needs


def _hostile(path: Path, name: str) -> ArchwrightError:
    return fail(
        "AW203",
        found=f"{path.name}: entry '{name}' outside the prefix",
        needed="packages whose files all stay inside the prefix",
        why="unpacking it could overwrite files elsewhere",
        fix="do not use it, and tell whoever runs the channel that served it",
    )


def _commands(link_json: bytes | None) -> list[str]:
    """The files that an installer makes for the entry points of a noarch Python package."""
    if link_json is None:
        return []
    content: Any = json.loads(link_json)
    points = (content.get("noarch") or {}).get("entry_points") or []
    return [f"bin/{point.partition('=')[0].strip()}" for point in points]


def _split(spec: str) -> tuple[str, str]:
    name, _, constraint = spec.partition(" ")
    return name, constraint


def _leaves(name: str, links: Mapping[str, str]) -> bool:
    """Whether writing `name` would leave the prefix, when `links` are there (those of any package)."""
    if name.startswith("/") or ".." in name.split("/"):
        return True
    todo, here, steps = [part for part in posixpath.dirname(name).split("/") if part not in ("", ".")], "", 0
    while todo:
        part = todo.pop(0)
        here = posixpath.normpath(posixpath.join(here, part))
        if here.startswith(".."):
            return True
        target = links.get(here)
        if target is not None:
            steps += 1
            if target.startswith("/") or steps > 40:
                return True
            here = posixpath.dirname(here)
            todo[:0] = [part for part in target.split("/") if part not in ("", ".")]
    return False
