"""C++ names as people write them, by the demangler of the C++ runtime that every Linux with Python wheels has.

A mangled name may refer to its own parts, so one of 300 letters can stand for gigabytes of text, and the runtime has no
limit. Names with many references therefore go to a child process that has limits of memory and time.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import resource
import select
import signal
from pathlib import Path

__all__ = ["demangle", "short_name", "stable_name"]

_MANGLED = re.compile(r"_Z[\w.$]+", re.A)
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
_CCCL = re.compile(r"(3cub|6thrust)(\d{1,4})_V_\d+_SM_\d")
_FEW = 12  # references: the text is then below 100 times the name, since three of them triple it at most
_LONGEST = 1 << 16  # of a name and of its text
_MEMORY, _SECONDS = 256 << 20, 2
_PATIENCE = 10.0  # seconds of wall time for one answer
_DEATHS = 3  # of the child; who goes on after that has a wheel that was made for this


@functools.cache
def _runtime() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    try:
        runtime, libc = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None)
    except OSError:
        return None
    function = runtime.__cxa_demangle
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    function.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    return runtime, libc


@functools.cache
def demangle(name: str) -> str:
    """`name` demangled, or as it is: not a mangled name, no C++ runtime, or a text of more than 64 KiB."""
    if len(name) > _LONGEST or not _MANGLED.fullmatch(name) or _runtime() is None:
        return name
    few = len(_REFERENCE.findall(name)) <= _FEW
    text = _call(name.encode()) if few else _child.ask(name.encode())
    return text.decode("utf-8", "backslashreplace") or name


def _call(name: bytes) -> bytes:
    """The text, or nothing."""
    if (libraries := _runtime()) is None:
        return b""
    runtime, libc = libraries
    status = ctypes.c_int()
    pointer = runtime.__cxa_demangle(name, None, None, ctypes.byref(status))
    if not pointer:
        return b""
    try:
        text = ctypes.string_at(pointer)
        return text if len(text) <= _LONGEST and b"\n" not in text else b""
    finally:
        libc.free(pointer)


class _Child:
    """A process that demangles, one line a name. It is forked on demand: starting Python would take 20 ms."""

    def __init__(self) -> None:
        self._pid = 0
        self._deaths = 0

    def ask(self, name: bytes) -> bytes:
        if self._deaths >= _DEATHS:
            return b""
        try:
            if not self._pid:
                self._start()
            os.write(self._questions, name + b"\n")
            text = b""
            while not text.endswith(b"\n"):
                # the parent may have threads, and a lock of theirs may be held in the child for ever
                if not select.select([self._answers], [], [], _PATIENCE)[0]:
                    os.kill(self._pid, signal.SIGKILL)
                if not (piece := os.read(self._answers, _LONGEST)):
                    raise BrokenPipeError("the child is gone")
                text += piece
            return text[:-1]
        except OSError:
            self._deaths += 1
            self._end()
            return b""

    def _start(self) -> None:
        questions, self._questions = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                os.close(self._questions)  # so that the end of the parent is the end of the questions
                _serve(questions, answers)
            finally:
                os._exit(0)
        os.close(questions)
        os.close(answers)

    def _end(self) -> None:
        if self._pid:
            os.close(self._questions)
            os.close(self._answers)
            os.waitpid(self._pid, 0)
        self._pid = 0


_child = _Child()


def _serve(questions: int, answers: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_AS, used + _MEMORY),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lowest, lowest))
    with open(questions, "rb") as lines:
        for line in lines:
            text = _call(line[:-1]) + b"\n"
            while text:
                text = text[os.write(answers, text) :]


def stable_name(name: str) -> str:
    """`name` without what CCCL mixes into its namespace: its release, and the list of all architectures of the build.

    So a kernel keeps its name when a wheel is built for one architecture more (`_V_300200_SM_1000_1030`).
    """
    text, at = "", 0
    for found in _CCCL.finditer(name):
        if found.start() >= at:
            text += f"{name[at : found.end(1)]}2_V"
            at = found.end(2) + int(found[2])
    return text + name[at:]


def short_name(demangled: str, width: int = 60) -> str:
    """A kernel's name for a table: no return type, parameters, namespaces or wrapper of CUTLASS; cut to `width`.

    Different kernels may get the same short name: the mangled one tells them apart.
    """
    text = re.sub(r"^void ", "", demangled)
    depth = 0
    for index, letter in enumerate(text):
        if letter == "(" and depth == 0 and not text.startswith("(anonymous", index):
            text = text[:index]
            break
        depth += (letter in "<({") - (letter in ">)}")
    text = re.sub(r"(?:\b\w+|\(anonymous namespace\))::", "", text)
    if wrapped := re.fullmatch(r"device_kernel<(.*)>", text):
        text = wrapped[1]
    return text if len(text) <= width else text[: width - 1] + "…"
