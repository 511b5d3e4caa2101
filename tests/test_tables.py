"""Tables are validated once for each content, and a cache that cannot be used only costs time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from archwright import tables
from archwright.errors import ArchwrightError
from archwright.tables import load_table


@pytest.fixture
def table(tmp_path: Path, root: Path) -> Path:
    return Path(shutil.copy(root / "python" / "archwright" / "targets.toml", tmp_path / "targets.toml"))


def test_a_table_that_was_validated_is_not_validated_again(
    table: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_table(table, "targets")
    monkeypatch.setitem(__import__("sys").modules, "jsonschema", None)  # importing it fails now
    assert load_table(table, "targets") == first
    assert len(list((cache / "tables").iterdir())) == 1


def test_another_content_is_validated(table: Path, cache: Path) -> None:
    load_table(table, "targets")
    table.write_text(table.read_text().replace('tier = "official"', 'tier = "best"', 1))
    for _ in range(2):  # a failure is not remembered as a success
        with pytest.raises(ArchwrightError, match="AW108"):
            load_table(table, "targets")


def test_another_schema_is_validated(table: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_table(table, "targets")
    (tmp_path / "targets.schema.json").write_text('{"type": "object", "required": ["no such key"]}')
    monkeypatch.setattr(tables, "_SCHEMAS", tmp_path)
    with pytest.raises(ArchwrightError, match="no such key"):
        load_table(table, "targets")


def test_a_cache_that_cannot_be_used_only_costs_time(
    table: Path, tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "file" / "cache"))
    assert load_table(table, "targets")["schema"] == 1
