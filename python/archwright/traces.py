"""Traces of the machine that built a wheel: paths, host name and user name, in any of its bytes (case H2)."""

from __future__ import annotations

import functools
import os
import pwd
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from .project import cache_dir, project_root

__all__ = ["find_traces", "machine_words"]

#: Folders that belong to a machine or a person. Looked for in binaries only: documents may name examples.
_FOLDERS = re.compile(rb"/(?:root|home|Users|tmp|var/tmp|mnt|scratch|workspace)/[\x21-\x7e]{1,200}")
#: What must not stand before such a folder (`$HOME/root/`, `a/home/`), nor around a word. Looked at by hand: a regular
#: expression that begins with a look behind is a hundred times slower.
_BEFORE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.$}%-")
_AFTER = _BEFORE - frozenset(b".$}%")
#: Names that are words of every other text; as part of a path they are found all the same.
_COMMON = frozenset(["root", "user", "admin", "ubuntu", "debian", "localhost", "builder", "docker", "runner"])
_MIN_WORD = 6
_TEXT = re.compile(rb"[\x20-\x7e]{1,120}")


@functools.cache
def machine_words() -> tuple[bytes, ...]:
    """What would give this machine away: its folders, its host name and its user's name.

    Host and user names of fewer than six letters, or that are common words, are left out: they occur by accident.
    """
    places = {project_root(), cache_dir(), Path.home(), Path(os.environ.get("TMPDIR", "/tmp")), Path.cwd()}
    paths = {str(place) for place in places} | {str(place.resolve()) for place in places}
    host = os.uname().nodename
    names = {host, host.partition(".")[0], _user()}
    names = {name for name in names if len(name) >= _MIN_WORD and name.casefold() not in _COMMON}
    long_enough = {path for path in paths if path.count("/") > 1}
    return tuple(sorted(word.encode() for word in long_enough | names))


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def find_traces(members: Mapping[str, bytes], allowed: tuple[str, ...] = ()) -> list[str]:
    """Each trace as `member: bytes around it`, at most three a member. `allowed` are patterns of harmless texts."""
    problems = []
    for name, data in members.items():
        found = list(_folders(data)) if data[:4] == b"\x7fELF" else []
        found += [_text_at(data, at) for word in machine_words() for at in _words(data, word)]
        unlike = dict.fromkeys(text for text in found if not any(fnmatch(text, pattern) for pattern in allowed))
        problems += [f"{name}: {text}" for text in list(unlike)[:3]]
    return problems


def _folders(data: bytes) -> Iterator[str]:
    for match in _FOLDERS.finditer(data):
        at = match.start()
        if not at or data[at - 1] not in _BEFORE:
            yield _text_at(data, at)


def _words(data: bytes, word: bytes) -> Iterator[int]:
    """Where `word` stands in `data` as a whole word."""
    at = data.find(word)
    while at >= 0:
        end = at + len(word)
        if (not at or data[at - 1] not in _BEFORE) and (end == len(data) or data[end] not in _AFTER):
            yield at
        at = data.find(word, end)


def _text_at(data: bytes, at: int) -> str:
    """The printable text that starts at `at`, 120 characters of it."""
    match = _TEXT.match(data, at)
    return match[0].decode("ascii") if match else ""
