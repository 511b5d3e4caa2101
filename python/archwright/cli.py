"""The command line: parses, calls the library and renders. Every command has `--json`; see docs/errors for statuses."""

from __future__ import annotations

import platform
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__, render
from .build import BuildOptions, build_wheels
from .components import components, find_component, matrix, select_cells
from .doctor import examine, is_fit
from .environment import Installer, check_nccl_root, create_environment
from .errors import ArchwrightError, Exit, fail
from .plan import make_plan
from .project import project_root
from .sources import fetch as fetch_source
from .targets import select_gencodes, target_table
from .ui import err, print_error, print_json

__all__ = ["app", "main", "run"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Wheels of DeepInfer's kernel libraries, for one accelerator architecture at a time.",
)
env_app = typer.Typer(no_args_is_help=True, help="Locked environments.")
app.add_typer(env_app, name="env")

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Offline = Annotated[bool, typer.Option("--offline", help="Use caches only; never the network.")]
Python = Annotated[str | None, typer.Option("--python", help="Path or version of the Python to build for.")]
TargetName = Annotated[str, typer.Argument(metavar="TARGET", help="sm100, sm90 or ascend950.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[COMPONENT]...")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show tracebacks of errors.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"archwright {__version__}")
        raise typer.Exit


@app.command()
def targets(
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]")] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show the matrix of cells: component x target x processor, with tier and reasons."""
    chosen = target_table().find(target) if target else None
    cells = [cell for cell in matrix() if chosen is None or cell.target == chosen.name]
    shown = [t for t in target_table().targets.values() if chosen is None or t is chosen]
    if json:
        print_json(render.matrix_as_dict(shown, cells))
    else:
        render.show_matrix(shown, cells)


@app.command()
def doctor(target: TargetName, python: Python = None, json: Json = False, verbose: Verbose = False) -> None:
    """Check in seconds whether this machine is fit to build TARGET."""
    chosen = target_table().find(target)
    findings = examine(chosen, python=python)
    if json:
        print_json({"target": chosen.name, "fit": is_fit(findings), "findings": [f.as_dict() for f in findings]})
    else:
        render.show_findings(chosen.name, findings)
    if not is_fit(findings):
        raise typer.Exit(Exit.UNFIT)


@app.command()
def fetch(names: Names = None, offline: Offline = False, json: Json = False, verbose: Verbose = False) -> None:
    """Fetch, verify, unpack and patch the sources (of all components, or of those named)."""
    trees = []
    for component in [find_component(name) for name in names or components()]:
        if not json:
            err.print(f"{component.name}: {component.distribution} {component.version}", style="dim")
        trees.append(fetch_source(component, offline=offline))
    if json:
        print_json([vars(tree) for tree in trees])
    else:
        render.show_sources(trees)


@env_app.command("create")
def env_create(
    target: TargetName,
    python: Python = None,
    installer: Annotated[Installer, typer.Option(help="What installs the locked packages.")] = Installer.UV,
    offline: Offline = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Create the locked environment of TARGET in the cache, or find it complete."""
    environment = create_environment(
        target_table().find(target),
        python=python,
        installer=installer,
        offline=offline,
        report=lambda message: err.print(message, style="dim"),
    )
    if json:
        print_json(environment.as_dict())
    else:
        render.show_environment(environment)


@app.command()
def build(
    target: TargetName,
    names: Names = None,
    gencode: Annotated[list[str] | None, typer.Option(help="Build device code for this one only (repeatable).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the wheels. Default: dist/<target>.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Compiles at once. Default: the cores that may be used.")
    ] = None,
    memory: Annotated[float | None, typer.Option(help="GiB to plan with. Default: 85 % of what may be used.")] = None,
    experimental: Annotated[bool, typer.Option("--experimental", help="Allow experimental targets.")] = False,
    plan_only: Annotated[bool, typer.Option("--plan", help="Print the plan and stop.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Fail when another build holds a cell.")] = False,
    no_cache: Annotated[bool, typer.Option("--no-compiler-cache", help="Do not use ccache or sccache.")] = False,
    nccl_root: Annotated[Path | None, typer.Option(help="Use this NCCL instead of the locked one.")] = None,
    installer: Annotated[Installer, typer.Option(help="What installs the locked packages.")] = Installer.UV,
    python: Python = None,
    offline: Offline = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build wheels for TARGET: plan, environment, compile, check. Resumes where an earlier run stopped."""
    chosen_target = target_table().find(target)
    chosen = select_cells(chosen_target, tuple(names or ()), platform.machine(), experimental=experimental)
    gencodes = select_gencodes(chosen_target, tuple(gencode or ()))
    plan = make_plan(
        chosen_target, chosen, gencodes, jobs=jobs, memory_mib=int(memory * 1024) if memory is not None else None
    )
    if nccl_root:
        check_nccl_root(nccl_root)
    if not json:
        render.show_plan(plan)
    if plan_only:
        if json:
            print_json(plan.as_dict())
        return
    environment = create_environment(
        chosen_target,
        python=python,
        installer=installer,
        offline=offline,
        report=lambda message: err.print(message, style="dim"),
    )
    options = BuildOptions(offline=offline, wait=not no_wait, compiler_cache=not no_cache, nccl_root=nccl_root)
    folder = (out or (_output_root() / "dist" / chosen_target.name)).absolute()
    with render.progress(plan, quiet=json) as observer:
        result = build_wheels(chosen_target, chosen, gencodes, environment, plan, folder, options, observer)
    if json:
        print_json({"plan": plan.as_dict(), **result.as_dict()})
    else:
        render.show_result(result)


def _output_root() -> Path:
    root_folder = project_root()
    return root_folder if (root_folder / "pyproject.toml").is_file() else Path.cwd()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in words
    try:
        return int(app(args=words, standalone_mode=False, prog_name="archwright") or Exit.DONE)
    except ArchwrightError as error:
        return _report(error, as_json, words)
    except typer.Exit as leave:
        return int(leave.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        return int(Exit.INTERRUPTED)
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("click", "typer"):
            raise
        return _report_usage(error, as_json)


def _report_usage(error: Any, as_json: bool) -> int:
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
        traceback.print_exception(error)
    return int(error.exit)


def run() -> None:
    """Entry point of the `archwright` command."""
    sys.exit(main())
