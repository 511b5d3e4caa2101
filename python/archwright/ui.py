"""What a person sees: one console for results, one for progress and errors. No colour when not a terminal."""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from .errors import ArchwrightError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["err", "out", "print_error", "print_json", "say"]


@functools.cache
def out() -> Console:
    """For results. A file or a pipe has no width of its own: it is wide enough for tables, unless COLUMNS is set."""
    from rich.console import Console  # not needed for --json, and slow to import

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(highlight=False, soft_wrap=True, width=width)


@functools.cache
def err() -> Console:
    """For progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str = "", style: str = "") -> None:
    """One line for people. Rich is not even imported when standard output is not a terminal."""
    if sys.stdout.isatty():
        out().print(text, style=style or None, markup=False)
    else:
        print(text)


def print_json(data: Any) -> None:
    """Write `data` as JSON to standard output, and nothing else."""
    print(json.dumps(data, indent=2, default=str, ensure_ascii=False))


def print_error(error: ArchwrightError) -> None:
    from rich.markup import escape

    err().print(f"[bold red]{error.code}[/] [bold]{escape(error.title)}[/]")
    for label, text in (("found", error.found), ("needed", error.needed), ("why", error.why), ("fix", error.fix)):
        err().print(f"  [dim]{label + ':':<8}[/]{escape(text)}")
    if error.detail:
        err().print(escape(error.detail.rstrip()), style="dim")
    err().print(f"  [dim]more:   docs/errors/{error.code}.md[/]")
