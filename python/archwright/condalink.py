"""Looking through conda packages and linking them into a prefix: the body of a process of its own.

    python -m archwright.condalink REQUEST RESULT

Its own, because it can be stopped at once without leaving a thread that writes, and because py-rattler 0.28 sometimes
crashes a Python that ends after it has used it: this one leaves without that end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from .condaarchive import look_through
from .condaplatform import check_machine
from .errors import ArchwrightError

__all__ = ["LinkRequest", "LinkResult", "leave"]


@dataclass(frozen=True)
class LinkRequest:
    """Verified package files, and where they go. `unpacked` is a scratch folder on the prefix's file system."""

    packages: tuple[str, ...]
    prefix: str
    platform: str
    unpacked: str


@dataclass(frozen=True)
class LinkResult:
    """What to tell the user; and an error of ours, as its fields, or of py-rattler, in its words."""

    notes: tuple[str, ...] = ()
    error: dict[str, str] | None = None
    trouble: str = ""


async def _do(request: LinkRequest) -> LinkResult:
    notes: list[str] = []
    try:
        needs = await look_through([Path(path) for path in request.packages], notes.append)
        # conda-lock drops the build part of a requirement; the packages themselves have all of it.
        check_machine(needs, request.platform)
        await _link(request)
    except ArchwrightError as error:
        return LinkResult(tuple(notes), error=asdict(error))
    except Exception as error:  # py-rattler's errors have no common base class
        return LinkResult(tuple(notes), trouble=f"{type(error).__name__}: {error}")
    return LinkResult(tuple(notes))


async def _link(request: LinkRequest) -> None:
    """Nothing is shared with a cache, where an edited file would come back."""
    from rattler import RepoDataRecord, Subdir, install

    records = [await RepoDataRecord.from_package_archive(path) for path in request.packages]
    await install(
        records,
        request.prefix,
        cache_dir=Path(request.unpacked),
        platform=Subdir(request.platform),
        execute_link_scripts=False,
        show_progress=False,
    )
    for path in Path(request.prefix, "conda-meta").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        # The unpacked copies are gone when this is read.
        record["extracted_package_dir"] = record["link"]["source"] = ""
        path.write_text(json.dumps(record, indent=2), encoding="utf-8")


def leave(status: int) -> NoReturn:
    """End this process without Python's own end, in which threads of py-rattler crash now and then (signal 11)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    asked = LinkRequest(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(asdict(asyncio.run(_do(asked)))), encoding="utf-8")
    leave(0)
