"""Which families of instructions a kernel uses: whether the tensor cores' and the bulk copies' fast paths are taken.

Needs nvdisasm or cuobjdump of CUDA 13, which nothing else here does.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from .errors import fail
from .kernels import DeviceCode, cubin_payloads

__all__ = ["FAMILIES", "count_instructions", "find_disassembler"]

#: Family -> pattern of SASS opcodes, named by the PTX instructions behind them. `tcgen05.mma` is the fast path of
#: SM100, `wgmma` that of SM90; `mma` is the older one that every device has.
FAMILIES = {
    "tcgen05.mma": r"UTC\w*MMA",
    "wgmma": r"[HIQB]GMMA",
    "mma": r"[HIDQO]MMA",
    "tensor memory": r"LDTM|STTM|UTCCP|UTCSHIFT",
    "bulk copy": r"UTMALDG|UTMASTG|UTMAREDG|UTMAPF|UBLKCP|UBLKRED|UBLKPF",
    "cp.async": r"LDGSTS",
    "setmaxnreg": r"USETMAXREG",
    "local memory": r"LDL|STL",
}
_PATTERNS = {family: re.compile(pattern) for family, pattern in FAMILIES.items()}
_LINE = re.compile(
    r"^\s*(?:\.target\s+(?P<arch>sm_\w+)|\.text\.(?P<section>[^\s:]+):|Function : (?P<function>\S+)"
    r"|/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*))",
    re.M,
)
_TIMEOUT = 600

#: `arch kernel` -> family -> count, of one cubin
_Counts = dict[str, dict[str, int]]


def find_disassembler() -> Path | None:
    """nvdisasm, else cuobjdump, on PATH."""
    found = shutil.which("nvdisasm") or shutil.which("cuobjdump")
    return Path(found) if found else None


def count_instructions(
    code: DeviceCode, members: Mapping[str, bytes], disassembler: Path, known: Path | None = None
) -> DeviceCode:
    """The same code with `instructions` of each kernel: family -> count, families that do not occur left out.

    `known` names a file that keeps the counts of earlier calls by the cubin's hash. Raises AW423 when the disassembler
    fails.
    """
    cubins = {hashlib.sha256(payload).hexdigest(): payload for payload in cubin_payloads(members)}
    counts = _load(known, cubins.keys())
    missing = [digest for digest in cubins if digest not in counts]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as threads:
        folder = Path(scratch)
        tasks = [threads.submit(_count, cubins[digest], folder / digest, disassembler) for digest in missing]
        counts |= {digest: task.result() for digest, task in zip(missing, tasks, strict=True)}
    if known is not None and missing:
        known.write_text(json.dumps(counts), encoding="utf-8")
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for kernels in counts.values():
        for key, families in kernels.items():
            found[key].update(families)
    return replace(
        code,
        kernels=tuple(
            replace(kernel, instructions=dict(sorted(found[f"{kernel.arch} {kernel.name}"].items())))
            for kernel in code.kernels
        ),
    )


def _load(known: Path | None, wanted: Collection[str]) -> dict[str, _Counts]:
    try:
        data = json.loads(known.read_text(encoding="utf-8")) if known else {}
        return {digest: data[digest] for digest in wanted if digest in data}
    except (OSError, ValueError, TypeError):
        return {}  # none yet, or damaged: it only saves time


def _count(cubin: bytes | memoryview, path: Path, disassembler: Path) -> _Counts:
    """`arch kernel` -> family -> how often its instructions occur in the text of one cubin."""
    path.write_bytes(cubin)
    option = "-sass" if disassembler.name.startswith("cuobjdump") else "-c"
    try:
        run = subprocess.run([disassembler, option, path], capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip()
        raise fail(
            "AW423",
            found=f"{disassembler} {option}: {said[:300]}",
            needed="nvdisasm or cuobjdump of the wheel's CUDA release, or newer",
            why="without a disassembly the instructions cannot be counted; everything else is read without one",
            fix="put the locked environment's cuda/bin first on PATH, or leave --sass out",
        ) from error
    finally:
        path.unlink(missing_ok=True)
    arch = ""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    function = ""
    for match in _LINE.finditer(run.stdout):
        if match["arch"]:
            arch = match["arch"]
        elif opcode := match["opcode"]:
            counts[function][opcode] += 1
        else:
            function = match["section"] or match["function"]
    return {f"{arch} {name}": _families(opcodes) for name, opcodes in counts.items() if name}


def _families(opcodes: Mapping[str, int]) -> dict[str, int]:
    found = {
        family: sum(number for opcode, number in opcodes.items() if pattern.fullmatch(opcode))
        for family, pattern in _PATTERNS.items()
    }
    return {family: number for family, number in found.items() if number}
