"""What the user configured for pip and uv reaches both, and nothing is written down here."""

from __future__ import annotations

from pathlib import Path

import pytest

from archwright.indexes import IndexSettings, index_settings

pytestmark = pytest.mark.usefixtures("quiet")


def test_nothing_configured_means_the_libraries_default() -> None:
    assert index_settings() == IndexSettings()


def test_pip_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.invalid/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one.invalid/simple https://two.invalid/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels https://links.invalid")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "mirror.invalid")
    monkeypatch.setenv("PIP_CERT", "/etc/my-ca.pem")
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    assert index_settings() == IndexSettings(
        index="https://mirror.invalid/simple",
        extra=("https://one.invalid/simple", "https://two.invalid/simple"),
        find_links=("/wheels", "https://links.invalid"),
        trusted_hosts=("mirror.invalid",),
        certificate="/etc/my-ca.pem",
        no_index=True,
    )


def test_pip_files_are_read_and_variables_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://file.invalid/simple\nextra-index-url =\n"
        "    https://one.invalid/simple\n    https://two.invalid/simple\n"
        "[download]\ntrusted-host = download.invalid\n[install]\nfind-links = /only-for-install\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))

    from_file = index_settings()
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.invalid/simple")
    with_variable = index_settings()

    assert from_file.index == "https://file.invalid/simple"
    assert from_file.extra == ("https://one.invalid/simple", "https://two.invalid/simple")
    assert from_file.trusted_hosts == ("download.invalid",)
    assert from_file.find_links == ()
    assert with_variable.index == "https://variable.invalid/simple"


@pytest.mark.parametrize("value", ["1", "true", "yes", "on", "True"])
def test_every_spelling_of_no_index(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", value)
    assert index_settings().no_index


def test_no_index_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    assert not index_settings().no_index


def test_uv_variables_are_honoured_and_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.invalid/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.invalid/simple")

    settings = index_settings()

    assert settings.index == "https://uv.invalid/simple"
    assert settings.uv_environment() == {}, "uv reads its own variable"


def test_pips_index_is_handed_on_to_uv() -> None:
    settings = IndexSettings(index="https://pip.invalid/simple")
    assert settings.uv_environment() == {"UV_DEFAULT_INDEX": "https://pip.invalid/simple"}


def test_the_default_index_is_left_to_uv() -> None:
    assert IndexSettings().uv_environment() == {}
