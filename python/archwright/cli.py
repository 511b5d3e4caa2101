"""The command line: parses, calls the library and renders. Every command has `--json`; see docs/errors for statuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import __version__
from .aotcli import aot, simulate
from .covercli import coverage
from .envcli import env
from .errors import ArchwrightError, Exit, fail
from .indexes import Flavour, Installer
from .options import (
    PATH,
    bundle_option,
    experimental_option,
    flavour_option,
    gencode_option,
    installer_option,
    jobs_option,
    json_option,
    memory_option,
    names_argument,
    news,
    no_wait_option,
    offline_option,
    out_option,
    package_source,
    plan_option,
    python_option,
    target_argument,
    verbose_option,
)
from .project import wheels_folder
from .ui import err, print_error, print_json

if TYPE_CHECKING:
    from .findings import Finding, Repair

# Everything else is imported by the command that uses it: `inspect` has to be done before `build`'s imports would be.

__all__ = ["app", "main", "run"]


@click.group(name="archwright", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="archwright %(version)s")
def app() -> None:
    """Wheels of DeepInfer's kernel libraries, for one accelerator architecture at a time."""


app.add_command(env)
app.add_command(aot)
app.add_command(coverage)
app.add_command(simulate)


@app.command()
@click.argument("target", required=False)
@json_option
@verbose_option
def targets(target: str | None, json: bool, verbose: bool) -> None:
    """Show the matrix of cells: component x target x processor, with tier and reasons."""
    from . import render
    from .components import matrix
    from .evidence import read_evidence
    from .targets import target_table

    chosen = target_table().find(target) if target else None
    cells = [cell for cell in matrix() if chosen is None or cell.target == chosen.name]
    shown = [t for t in target_table().targets.values() if chosen is None or t is chosen]
    evidence = [record for t in shown for record in read_evidence(wheels_folder(t.name))]
    if json:
        print_json(render.matrix_as_dict(shown, cells, evidence))
    else:
        render.show_matrix(shown, cells, evidence)


@app.command()
@target_argument
@click.option("--fix", is_flag=True, help="Print the exact repairs; on a terminal, offer to run each of them.")
@click.option("--yes", is_flag=True, help="With --fix: run them without asking.")
@python_option
@json_option
@verbose_option
def doctor(target: str, fix: bool, yes: bool, python: str | None, json: bool, verbose: bool) -> int:
    """Check in seconds whether this machine is fit to build TARGET."""
    from . import render
    from .doctor import examine, is_fit
    from .repairs import apply_repairs, repaired
    from .targets import target_table

    if yes and not fix:
        raise fail("AW109", found="--yes without --fix", needed="--fix --yes", why="nothing was done", fix="add --fix")
    chosen = target_table().find(target)
    findings = examine(chosen, python=python)
    if not json:
        render.show_findings(chosen.name, findings)
    steps = apply_repairs(findings, _consent(yes, json), quiet=json) if fix else ()
    if fix and not json:
        render.show_repairs(steps)
    better: tuple[str, ...] = ()
    if any(step.was_run for step in steps):
        before, findings = findings, examine(chosen, python=python)
        better = repaired(before, findings)
        if not json:
            render.show_repaired(chosen.name, better, findings)
    if json:
        found = {"target": chosen.name, "fit": is_fit(findings), "findings": [f.as_dict() for f in findings]}
        print_json(found | ({"steps": [s.as_dict() for s in steps], "repaired": better} if fix else {}))
    return Exit.DONE if is_fit(findings) else Exit.UNFIT


def _consent(yes: bool, json: bool) -> Callable[[Finding, Repair], bool] | None:
    """Who agrees to a repair: the user beforehand, the user now, or nobody, when there is no terminal to ask on."""
    if yes:
        return lambda finding, repair: True
    if json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    return lambda finding, repair: click.confirm(f"{finding.check}: run `{repair}`?", default=False)


@app.command()
@names_argument
@offline_option
@bundle_option
@json_option
@verbose_option
def fetch(names: tuple[str, ...], offline: bool, bundle: Path | None, json: bool, verbose: bool) -> None:
    """Fetch, verify, unpack and patch the sources (of all components, or of those named)."""
    from . import render
    from .components import components, find_component
    from .sources import fetch as fetch_source

    chosen = [find_component(name) for name in names or components()]
    if bundle:
        from .bundle import open_bundle

        opened = open_bundle(bundle, names=names, report=news)
        opened.seed_cache()
        chosen = [component for component in chosen if component.name in opened.components]
    trees = []
    for component in chosen:
        if not json:
            err().print(f"{component.name}: {component.origin} {component.version}", style="dim")
        trees.append(fetch_source(component, offline=offline or bundle is not None))
    if json:
        print_json([vars(tree) for tree in trees])
    else:
        render.show_sources(trees)


@app.command()
@target_argument
@names_argument
@gencode_option
@out_option
@jobs_option
@memory_option
@experimental_option
@plan_option
@no_wait_option
@click.option("--host-only", is_flag=True, help="Compile host files and make no wheel: needs no device compiler.")
@click.option("--no-compiler-cache", "no_cache", is_flag=True, help="Do not use ccache or sccache.")
@flavour_option
@click.option("--nccl-root", type=PATH, help="Use this NCCL instead of the locked one.")
@installer_option
@python_option
@offline_option
@bundle_option
@json_option
@verbose_option
def build(
    target: str,
    names: tuple[str, ...],
    gencode: tuple[str, ...],
    out: Path | None,
    jobs: int | None,
    memory: int | None,
    experimental: bool,
    plan_only: bool,
    no_wait: bool,
    host_only: bool,
    no_cache: bool,
    flavour: Flavour,
    nccl_root: Path | None,
    installer: Installer,
    python: str | None,
    offline: bool,
    bundle: Path | None,
    json: bool,
    verbose: bool,
) -> None:
    """Build wheels for TARGET: plan, environment, compile, check. Resumes where an earlier run stopped."""
    from . import render
    from .ascend import cann_for
    from .build import BuildOptions, build_wheels
    from .components import select_cells
    from .environment import check_nccl_root, create_environment
    from .plan import make_plan
    from .targets import select_gencodes, target_table

    chosen_target = target_table().find(target)
    chosen = select_cells(chosen_target, names, os.uname().machine, experimental=experimental, host_only=host_only)
    for component in chosen:
        cann_for(component, chosen_target)  # an error in seconds
    gencodes = select_gencodes(chosen_target, gencode)
    plan = make_plan(chosen_target, chosen, gencodes, jobs=jobs, memory_mib=memory)
    if nccl_root:
        check_nccl_root(nccl_root)
    if not render.announce(plan, plan_only=plan_only, json=json):
        return
    source = package_source(chosen_target, installer, offline, bundle, news, [component.name for component in chosen])
    environment = create_environment(chosen_target, python=python, source=source, flavour=flavour, report=news)
    options = BuildOptions(
        offline=source.offline,
        wait=not no_wait,
        compiler_cache=not no_cache,
        nccl_root=nccl_root,
        host_only=host_only,
    )
    folder = (out or wheels_folder(chosen_target.name)).absolute()
    with render.progress(plan, quiet=json) as observer:
        result = build_wheels(chosen_target, chosen, gencodes, environment, plan, folder, options, observer)
    render.show_built(plan, result, json=json)


@app.command()
@click.argument("wheels", metavar="WHEEL...", nargs=-1, type=PATH)
@click.option("--sass", is_flag=True, help="Disassemble and count instructions (nvdisasm or cuobjdump on PATH).")
@click.option("--html", type=PATH, metavar="FILE", help="Also write one HTML page to FILE.")
@click.option("--compare", nargs=2, type=PATH, metavar="OLD NEW", help="Show what changed, kernel by kernel.")
@click.option("--write-budget", is_flag=True, help="Write the wheels' figures into their kernel budget files.")
@json_option
@verbose_option
def inspect(
    wheels: tuple[Path, ...],
    sass: bool,
    html: Path | None,
    compare: tuple[Path, Path] | None,
    write_budget: bool,
    json: bool,
    verbose: bool,
) -> int:
    """Show what is inside wheels, kernel by kernel, and check it: exit status 1 when a gate fails."""
    from . import inspecting

    if bool(wheels) == bool(compare):
        raise fail(
            "AW109",
            found="neither wheels nor --compare" if compare is None else "wheels beside --compare",
            needed="`archwright inspect WHEEL...` or `archwright inspect --compare OLD NEW`",
            why="nothing was done",
            fix="name the wheels, for example dist/sm100/*.whl",
        )
    if compare:
        inspecting.compare_wheels(*compare, sass=sass, as_json=json)
        return Exit.DONE
    return inspecting.inspect_wheels(wheels, sass=sass, html=html, write_budget=write_budget, as_json=json)


@app.command()
@target_argument
@click.argument("name", metavar="COMPONENT")
@gencode_option
@click.option("--keep", is_flag=True, help="Keep both wheels, both copies and the logs.")
@experimental_option
@installer_option
@python_option
@offline_option
@json_option
@verbose_option
def repro(
    target: str,
    name: str,
    gencode: tuple[str, ...],
    keep: bool,
    experimental: bool,
    installer: Installer,
    python: str | None,
    offline: bool,
    json: bool,
    verbose: bool,
) -> int:
    """Build COMPONENT twice in different surroundings and compare the wheels byte by byte."""
    from . import render
    from .components import select_cells
    from .environment import create_environment
    from .repro import check_reproducible
    from .targets import select_gencodes, target_table

    chosen = target_table().find(target)
    (component,) = select_cells(chosen, (name,), os.uname().machine, experimental=experimental)
    gencodes = select_gencodes(chosen, gencode)

    tell = (lambda message: None) if json else news
    source = package_source(chosen, installer, offline, None, tell)
    environment = create_environment(chosen, python=python, source=source, report=tell)
    result = check_reproducible(
        chosen, component, gencodes, environment, offline=offline, keep=keep, installer=installer, news=tell
    )
    if json:
        print_json(result.as_dict())
    else:
        render.show_repro(result)
    if (error := result.error()) and not json:
        raise error
    return error.exit if error else Exit.DONE


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in words
    try:
        return int(app.main(args=words, standalone_mode=False) or Exit.DONE)
    except ArchwrightError as error:
        return _report(error, as_json, words)
    except (KeyboardInterrupt, click.Abort):
        err().print("interrupted")
        return int(Exit.INTERRUPTED)
    except click.ClickException as error:
        return _report_usage(error, as_json)


def _report_usage(error: click.ClickException, as_json: bool) -> int:
    """A misspelt option, value or command, found by the command line parser."""
    if as_json:
        said = error.format_message()
        usage = fail(
            "AW109", found=said, needed="a command as `--help` shows it", why="nothing was done", fix="see `--help`"
        )
        print_json({"error": usage.as_dict()})
    else:
        error.show()
    return int(Exit.USAGE)


def _report(error: ArchwrightError, as_json: bool, words: list[str]) -> int:
    if as_json:
        print_json({"error": error.as_dict()})
    else:
        print_error(error)
    if "-v" in words or "--verbose" in words:
        import traceback  # slow to import

        traceback.print_exception(error)
    return int(error.exit)


def run() -> None:
    """Entry point of the `archwright` command."""
    sys.exit(main())
