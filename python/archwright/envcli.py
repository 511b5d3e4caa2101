"""`archwright env`: make locked environments, check them, compare their locks, take them along and freeze them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .errors import Exit
from .indexes import Flavour, Installer
from .options import (
    PATH,
    bundle_option,
    flavour_option,
    installer_option,
    json_option,
    names_argument,
    news,
    offline_option,
    package_source,
    python_option,
    target_argument,
    verbose_option,
)
from .ui import print_json, say

if TYPE_CHECKING:
    from .locking import LockResult

__all__ = ["env"]


@click.group()
def env() -> None:
    """Locked environments."""


@env.command()
@target_argument
@flavour_option
@click.option("--again", is_flag=True, help="Make it anew, though it is complete.")
@python_option
@installer_option
@offline_option
@bundle_option
@json_option
@verbose_option
def create(
    target: str,
    flavour: Flavour,
    again: bool,
    python: str | None,
    installer: Installer,
    offline: bool,
    bundle: Path | None,
    json: bool,
    verbose: bool,
) -> None:
    """Create the locked environment of TARGET in the cache, or find it complete."""
    from . import render
    from .environment import create_environment
    from .targets import target_table

    chosen = target_table().find(target)
    source = package_source(chosen, installer, offline, bundle, news)
    environment = create_environment(chosen, python=python, source=source, flavour=flavour, again=again, report=news)
    if json:
        print_json(environment.as_dict())
    else:
        render.show_environment(environment)


@env.command()
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@flavour_option
@click.option("--upgrade", is_flag=True, help="Take the newest versions that fit, not those that the locks have.")
@click.option("--check", is_flag=True, help="Write nothing; exit status 1 when a lock is not what its input gives.")
@offline_option
@json_option
@verbose_option
def lock(
    targets: tuple[str, ...], flavour: Flavour, upgrade: bool, check: bool, offline: bool, json: bool, verbose: bool
) -> None:
    """Make the locks again from the inputs in envs/ (of all targets and of the tool, or of those named)."""
    from .locking import conda_locks, hash_locks, make_locks
    from .targets import target_table

    if flavour is Flavour.CONDA:
        results = conda_locks([target_table().find(name) for name in targets], upgrade, check, offline, news)
        _show_locks(results, json)
        return
    chosen = [lock for name in targets for lock in hash_locks(target_table().find(name))] or hash_locks()
    _show_locks(make_locks(chosen, upgrade=upgrade, check=check, offline=offline, report=news), json)


def _show_locks(results: tuple[LockResult, ...], json: bool) -> None:
    if json:
        print_json([result.as_dict() for result in results])
        return
    for result in results:
        say(f"{'changed  ' if result.changed else 'unchanged'}  {result.packages:3} packages  {result.path}")


@env.command()
@target_argument
@flavour_option
@click.option("--no-imports", is_flag=True, help="Compare files only; do not load the libraries together.")
@python_option
@json_option
@verbose_option
def check(target: str, flavour: Flavour, no_imports: bool, python: str | None, json: bool, verbose: bool) -> int:
    """Compare the environment of TARGET with its lock, file by file, and load its libraries together."""
    from .checking import check_environment
    from .targets import target_table

    chosen = target_table().find(target)
    result = check_environment(chosen, python=python, flavour=flavour, imports=not no_imports, report=news)
    if json:
        print_json(result.as_dict())
        return result.exit
    for line in result.lines():
        say(line)
    if error := result.error():
        raise error
    return Exit.DONE


@env.command()
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
@json_option
@verbose_option
def diff(old: Path, new: Path, json: bool, verbose: bool) -> int:
    """Show what changed from lock OLD to lock NEW: two files, or two folders. Exit status 1 when they differ."""
    from .lockdiff import compare_locks

    result = compare_locks(old, new)
    if json:
        print_json(result.as_dict())
    else:
        for line in result.lines():
            say(line)
    return Exit.DONE if result.same else Exit.CHECK_FAILED


@env.command()
@target_argument
@names_argument
@click.option("--out", type=PATH, required=True, metavar="DIR", help="The folder to make.")
@python_option
@json_option
@verbose_option
def export(target: str, names: tuple[str, ...], out: Path, python: str | None, json: bool, verbose: bool) -> None:
    """Put all that TARGET's build needs into one folder, for machines without a network."""
    import os

    from .components import select_cells
    from .exporting import export_bundle
    from .targets import target_table

    chosen = target_table().find(target)
    components = select_cells(chosen, names, os.uname().machine, experimental=True)
    bundle = export_bundle(chosen, components, out.absolute(), python=python, report=news)
    if json:
        print_json(bundle.as_dict())
    else:
        for line in bundle.lines():
            say(line)


@env.command()
@target_argument
@click.option("--model", help="The model that results are about, as you identify it: a name and a revision.")
@click.option("--out", type=PATH, metavar="FILE", help="Default: dist/<target>/freeze.json.")
@click.option("--check", is_flag=True, help="Compare the record with this machine; exit status 1 when it differs.")
@python_option
@json_option
@verbose_option
def freeze(
    target: str, model: str | None, out: Path | None, check: bool, python: str | None, json: bool, verbose: bool
) -> None:
    """Write down everything that results on this machine depend on, in one file with one digest."""
    from .environment import require_environment
    from .freeze import check_freeze, write_freeze
    from .freeze import freeze as freeze_now
    from .project import wheels_folder
    from .targets import target_table

    chosen = target_table().find(target)
    environment = require_environment(chosen, python=python)
    path = out or wheels_folder(chosen.name) / "freeze.json"
    if check:
        record = check_freeze(path, environment)
    else:
        record = freeze_now(environment, model)
        write_freeze(record, path)
    if json:
        print_json(record)
    else:
        say(f"{path}\n  digest  {record['digest']}")
        say(f"  model   {record['model'] or 'not named (--model)'}")
        say(f"  driver  {record['driver'] or 'none found: results of a device cannot be frozen here'}")
