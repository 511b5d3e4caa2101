"""The command `coverage`: gathers what coverage.py joins, and shows it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import PATH, json_option, offline_option, target_argument, verbose_option
from .project import wheels_folder
from .ui import err, out, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from .components import Component
    from .coverage import Coverage, Entry, State
    from .targets import Target

__all__ = ["coverage"]


@click.command()
@target_argument
@click.option("--pack", "packs", type=PATH, multiple=True, metavar="WHEEL", help="Default: those in dist/<target>.")
@click.option("--source", type=PATH, metavar="DIR", help="Look for calls in this tree instead of the pinned DeepInfer.")
@offline_option
@json_option
@verbose_option
def coverage(
    target: str, packs: tuple[Path, ...], source: Path | None, offline: bool, json: bool, verbose: bool
) -> None:
    """Show which of DeepInfer's calls have kernels for TARGET in AOT packs, and why the others have none."""
    from .calls import find_calls
    from .components import components
    from .coverage import cover
    from .errors import fail
    from .manifests import is_pack, read_manifest
    from .sources import fetch
    from .targets import target_table

    chosen = target_table().find(target)
    if source is not None and not source.is_dir():
        raise fail(
            "AW109",
            found=f"--source {source}",
            needed="a folder with Python packages",
            why="nothing was looked at",
            fix="name the folder that holds `deepinfer`",
        )
    folder = wheels_folder(chosen.name)
    wheels = packs or tuple(sorted(path for path in folder.glob("*.whl") if is_pack(path)))
    manifests = [read_manifest(path) for path in wheels]
    tree = source or fetch(components()["engine"], offline=offline).path
    result = cover(
        find_calls(tree),
        chosen,
        manifests,
        components(),
        kernels_of=lambda recipe: _kernels_of(recipe, chosen, folder),
        canonical=_canonical(tree, offline),
    )
    if json:
        print_json(result.as_dict())
    else:
        _show(result)


def _kernels_of(recipe: Component, target: Target, folder: Path) -> str:
    """What the library's own wheel in `folder` holds: the one with most kernels, when there are several."""
    from .wheelfile import read_wheel

    best, words = 0, ""
    for path in sorted(folder.glob(f"{recipe.distribution.replace('-', '_')}-{recipe.version}+*.whl")):
        wheel = read_wheel(path)
        record = wheel.archwright() or {}
        count = len(record.get("kernels", ()))
        if record.get("target") == target.name and count > best:
            best, words = count, f"{count} kernels in {recipe.distribution} {wheel.version}"
    return words


def _canonical(engine: Path, offline: bool) -> Callable[[str], str]:
    """Follows re-exports in the libraries' sources, which are only read when a name needs it."""
    from .components import components
    from .errors import ArchwrightError
    from .pyvalues import PythonTree
    from .sources import fetch

    trees: dict[str, PythonTree | None] = {}

    def tree_of(package: str) -> PythonTree | None:
        if package not in trees:
            trees[package] = None
            recipes = [recipe for recipe in components().values() if recipe.package == package and not recipe.pack]
            with contextlib.suppress(ArchwrightError):  # without the source a name stays as it is
                if (engine / package).is_dir():
                    trees[package] = PythonTree(engine, package)
                elif recipes:
                    trees[package] = PythonTree(fetch(recipes[0], offline=offline).path, package)
        return trees[package]

    def canonical(name: str) -> str:
        tree = tree_of(name.partition(".")[0])
        found = list(tree.resolve(name)) if tree else []
        return found[0].name if len(found) == 1 else name

    return canonical


# --------------------------------------------------------------------------------------------------------- showing


def _show(result: Coverage) -> None:
    with _pages():
        for library in dict.fromkeys(entry.library for entry in result.entries):
            out().print(_table(library, [entry for entry in result.entries if entry.library == library]))
        _show_summary(result)
    for file, reason in result.unread.items():
        err().print(f"not read: {file}: {reason}", style="yellow", markup=False)


@contextlib.contextmanager
def _pages() -> Iterator[None]:
    """A pager in a terminal, which leaves at once when everything fits."""
    if not out().is_terminal:
        yield
        return
    os.environ.setdefault("LESS", "-FRX")
    with out().pager(styles=True):
        yield


def _table(library: str, entries: list[Entry]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=library, title_justify="left")
    for heading in ("entry point", "called at", "state", "cases", "kernels", "why, or what is missing"):
        number = heading in ("cases", "kernels")
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for entry in entries:
        first, more = entry.places[0], len(entry.places) - 1
        place = f"{first.file.rpartition('/')[2]}:{first.line}" + (f" +{more}" if more else "")
        cases = f"{entry.compiled}/{entry.cases}" if entry.cases else ""
        state = f"[{_style(entry.state)}]{entry.state}[/]"
        name = escape(entry.entry.removeprefix(f"{library}."))
        table.add_row(name, escape(place), state, cases, str(entry.kernels or ""), escape(entry.reason))
    return table


def _style(state: State) -> str:
    from .coverage import State

    good = (State.COVERED, State.NO_COMPILE, State.AHEAD, State.SETTING)
    return "green" if state in good else "red" if state is State.NO_KERNEL else "yellow"


def _show_summary(result: Coverage) -> None:
    for library, states in result.counts().items():
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        out().print(f"{library}: {sum(states.values())} entry points: {counts}", markup=False)
    for manifest in result.manifests:
        what = f"{manifest.wheel.name}: {manifest.model}, {manifest.device}, {manifest.arch}"
        out().print(f"pack {what}", markup=False, style="dim")
    if not result.manifests:
        out().print(f"no pack: `archwright aot {result.target}` makes them", markup=False, style="yellow")
    left = (
        f"{len(result.elsewhere)} entry points only on other devices, {len(result.mentioned)} only mentioned (--json)"
    )
    out().print(f"left out: {left}", markup=False, style="dim")
    out().print(result.not_verified, markup=False, style="dim")
