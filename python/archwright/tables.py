"""Reading a TOML table and checking it against its JSON schema, once, with errors that name the line's key."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema

from .errors import fail

__all__ = ["load_table"]

_SCHEMAS = Path(__file__).resolve().parent / "schemas"


def load_table(path: Path, schema: str) -> dict[str, Any]:
    """Read the TOML file at `path` and validate it with `schemas/<schema>.schema.json`.

    Raises AW108 when the file is not TOML or does not fit the schema.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _invalid(path, str(error)) from error
    rules = json.loads((_SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8"))
    worst = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(rules).iter_errors(data))
    if worst is not None:
        raise _invalid(path, f"{worst.json_path}: {worst.message}")
    return data


def _invalid(path: Path, message: str) -> Exception:
    return fail(
        "AW108",
        found=f"{path}: {message}",
        needed="a table that fits its schema (python/archwright/schemas)",
        why="targets and components are data: a wrong table would build the wrong thing",
        fix="correct the key that is named",
    )
