"""A small conda for machines that have none: what conda-lock asks of its `--conda`, done by py-rattler.

    archwright-conda --version
    archwright-conda info --json
    archwright-conda list --prefix P --json
    archwright-conda create  --prefix P --dry-run --json --channel C... SPEC...     solve
    archwright-conda install --prefix P --dry-run --json --channel C... SPEC...     solve again, keeping the rest
    archwright-conda create  --prefix P --file EXPLICIT --yes                       install exactly these files

As conda does, it takes the platform from $CONDA_SUBDIR and what the machine is said to have from $CONDA_OVERRIDE_*, and
answers with one JSON object. Anything else is refused: this is no package manager.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .condainstall import install_explicit
from .condalink import leave
from .condaplatform import current_platform, virtual_packages
from .errors import ArchwrightError, Exit
from .project import cache_dir

if TYPE_CHECKING:
    from rattler import MatchSpec

__all__ = ["main", "run"]


class _Refused(Exception):
    """A request that this front end does not serve, in words."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(f"{message} (this is Archwright's front end, which does only what conda-lock needs)")


def run() -> NoReturn:
    """The program `archwright-conda`."""
    leave(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Do what `arguments` ask, print the answer, and return the exit status."""
    try:
        options = _parser().parse_args(arguments)
        if options.command == "info":
            answer: Any = _info()
        elif options.command == "list":
            answer = _installed(Path(options.prefix))
        elif options.file:
            answer = _create_from_file(options)
        else:
            answer = _solved(options)
    except _Refused as error:
        return _failed("CommandNotServed", str(error), Exit.USAGE)
    except ImportError as error:
        return _failed("RattlerMissing", f"py-rattler cannot be used: {error}", Exit.UNFIT)
    except ArchwrightError as error:
        return _failed(error.code, str(error), error.exit)
    except OSError as error:
        return _failed(type(error).__name__, str(error), Exit.CHECK_FAILED)
    except Exception as error:  # py-rattler's errors have no common base class
        if not type(error).__module__.startswith(("exceptions", "rattler")):
            raise
        return _failed(type(error).__name__, str(error), Exit.CHECK_FAILED)
    print(json.dumps(answer, indent=1))
    return 0


def _failed(name: str, message: str, status: int) -> int:
    """Print an error as conda does: one JSON object, whose `message` conda-lock shows."""
    print(json.dumps({"success": False, "exception_name": name, "error": f"{name}: {message}", "message": message}))
    print(message, file=sys.stderr)
    return int(status)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="archwright-conda", description="What conda-lock needs of a conda, done by py-rattler.")
    parser.add_argument("--version", action="version", version=f"archwright-conda {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name in ("info", "list", "create", "install"):
        command = commands.add_parser(name)
        command.add_argument("--json", action="store_true")
        if name == "info":
            continue
        command.add_argument("-p", "--prefix", required=True)
        if name == "list":
            command.add_argument("--no-pip", action="store_true")
            continue
        command.add_argument("-c", "--channel", action="append", default=[])
        command.add_argument("--override-channels", action="store_true")
        command.add_argument("--dry-run", action="store_true")
        command.add_argument("--offline", action="store_true", default=os.environ.get("CONDA_OFFLINE") == "true")
        command.add_argument("-y", "--yes", action="store_true")
        command.add_argument("-q", "--quiet", action="store_true")
        command.add_argument("--copy", action="store_true", help="accepted: files are never shared with a cache")
        command.add_argument("--file")
        command.add_argument("specs", nargs="*")
    return parser


def _info() -> dict[str, Any]:
    return {
        "conda_version": __version__,
        "platform": current_platform(),
        "pkgs_dirs": [os.environ.get("CONDA_PKGS_DIRS") or str(cache_dir() / "conda")],
        "virtual_pkgs": [list(package) for package in virtual_packages(current_platform())],
    }


def _installed(prefix: Path) -> list[dict[str, Any]]:
    """The packages of `prefix`, from its conda-meta, as `conda list --json` words them."""
    packages = []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        packages.append(_link_action(record))
    return packages


def _link_action(record: dict[str, Any]) -> dict[str, Any]:
    build = record.get("build", "")
    return {
        "name": record["name"],
        "version": record["version"],
        "build_string": build,
        "build_number": record.get("build_number", 0),
        "channel": record.get("channel") or "",
        "base_url": record.get("channel") or "",
        "dist_name": f"{record['name']}-{record['version']}-{build}",
        "platform": record.get("subdir", ""),
    }


def _create_from_file(options: argparse.Namespace) -> dict[str, Any]:
    if options.command != "create" or options.specs or options.dry_run:
        raise _Refused("--file goes with `create --prefix` alone")
    text = Path(options.file).read_text(encoding="utf-8")
    count = install_explicit(text, Path(options.prefix), platform=current_platform(), offline=options.offline)
    return {"success": True, "prefix": options.prefix, "packages": count}


def _solved(options: argparse.Namespace) -> dict[str, Any]:
    if not options.dry_run:
        raise _Refused("installing what was not locked: only --dry-run, or create --file, is served")
    if not options.channel or not options.specs:
        raise _Refused("at least one --channel and one specification are needed")
    installed = _installed(Path(options.prefix)) if options.command == "install" else []
    records = asyncio.run(_solve(options.channel, options.specs, installed, options.offline))
    before = {(p["name"], p["version"], p["build_string"]) for p in installed}
    changed = [r for r in records if (r["name"], r["version"], r["build"]) not in before]
    return {
        "success": True,
        "dry_run": True,
        "prefix": options.prefix,
        "actions": {"FETCH": changed, "LINK": [_link_action(record) for record in changed]},
    }


async def _solve(
    channels: Sequence[str], specs: Sequence[str], installed: Sequence[dict[str, Any]], offline: bool
) -> list[dict[str, Any]]:
    """The records that fulfil `specs`, by name; of `installed`, those that no spec names stay if they can."""
    from rattler import (
        Channel,
        Gateway,
        GenericVirtualPackage,
        PackageName,
        SourceConfig,
        Subdir,
        Version,
        solve,
    )
    from rattler.package import BuildString

    platform = current_platform()
    platforms = [Subdir(platform), Subdir("noarch")]
    sources = [Channel(channel) for channel in channels]
    config = SourceConfig(cache_action="force-cache-only" if offline else "cache-or-fetch")
    gateway = Gateway(cache_dir=cache_dir() / "conda" / "repodata", default_config=config)
    wanted = [_parsed(spec) for spec in specs]
    named = {spec.name.normalized for spec in wanted}
    kept = {p["name"]: (p["version"], p["build_string"]) for p in installed if p["name"] not in named}
    found = await gateway.query(sources, platforms, list(kept), recursive=False) if kept else []
    candidates = [record for records in found for record in records]
    records = await solve(
        sources,
        [*wanted, *kept],
        gateway=gateway,
        platforms=platforms,
        locked_packages=[r for r in candidates if kept[r.name.normalized] == (str(r.version), str(r.build))],
        virtual_packages=[
            GenericVirtualPackage(PackageName(name), Version(version), BuildString(build))
            for name, version, build in virtual_packages(platform)
        ],
    )
    actions = [json.loads(record.to_json()) for record in records]
    return sorted(actions, key=lambda action: str(action["name"]))


def _parsed(spec: str) -> MatchSpec:
    """`spec` with conda's meaning: a bare version is that version."""
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    try:
        return MatchSpec(spec)
    except InvalidMatchSpecError as error:
        raise _Refused(f"'{spec}' is no specification: {error}") from error


if __name__ == "__main__":
    run()
