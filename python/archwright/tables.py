"""Reading a TOML table and checking it against its JSON schema, once, with errors that name the line's key."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

from .errors import ArchwrightError, fail
from .project import cache_dir

__all__ = ["load_table", "schema_problem"]

_SCHEMAS = Path(__file__).resolve().parent / "schemas"


def load_table(path: Path, schema: str) -> dict[str, Any]:
    """Read the TOML file at `path` and validate it with `schemas/<schema>.schema.json`.

    Raises AW108 when the file is not TOML or does not fit the schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _invalid(path, str(error)) from error
    _validate(path, text, data, (_SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8"))
    return data


def _validate(path: Path, text: str, data: dict[str, Any], schema: str) -> None:
    """Validate once for each content: importing jsonschema takes longer than everything else that `inspect` does."""
    digest = hashlib.sha256(f"{schema}\0{text}".encode()).hexdigest()
    try:
        done = cache_dir() / "tables" / digest
        if done.exists():
            return
    except (ArchwrightError, OSError):
        done = None  # a cache that cannot be used only costs time
    if problem := schema_problem(data, schema):
        raise _invalid(path, problem)
    if done is not None:
        with contextlib.suppress(OSError):
            done.parent.mkdir(exist_ok=True)
            done.touch()


def schema_problem(data: Any, schema: str) -> str:
    """Where `data` does not fit the JSON Schema in the text `schema`: the most telling of its errors, or ""."""
    import jsonschema  # slow to import

    worst = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(json.loads(schema)).iter_errors(data))
    return "" if worst is None else f"{worst.json_path}: {worst.message}"


def _invalid(path: Path, message: str) -> Exception:
    return fail(
        "AW108",
        found=f"{path}: {message}",
        needed="a table that fits its schema (python/archwright/schemas)",
        why="targets and components are data: a wrong table would build the wrong thing",
        fix="correct the key that is named",
    )
