"""Proxy settings: each shape that some tool misreads, and no password in what is shown."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archwright.findings import Finding, Level
from archwright.indexes import index_settings
from archwright.proxies import check_proxy, without_password

pytestmark = pytest.mark.usefixtures("clean")

Set = Callable[..., Finding]


@pytest.fixture
def clean(pip_answers_at_once: None, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy is set, and there is an apt."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(script("apt-get", "exit 0").parent))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Set:
    """What is found with these variables set."""

    def look(**settings: str) -> Finding:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        (finding,) = check_proxy()
        assert finding.code == "AW328"
        assert (finding.check, bool(finding.fix)) == ("proxy", finding.level is not Level.OK)
        return finding

    return look


def lines(finding: Finding) -> list[str]:
    return [str(repair) for repair in finding.repairs]


def test_none_is_set(found: Set) -> None:
    assert found().level is Level.OK


@pytest.mark.parametrize("value", ["http://proxy:3128", "https://proxy", "http://[::1]:3128", "http://u:p@proxy:3128/"])
def test_settings_that_every_tool_reads_alike(value: str, found: Set) -> None:
    finding = found(http_proxy=value, https_proxy=value, no_proxy="localhost,.example.com,10.0.0.1")
    assert finding.level is Level.OK, finding
    assert "u:p" not in finding.found
    assert "proxy" in finding.found


def test_both_spellings_may_say_the_same(found: Set) -> None:
    assert found(http_proxy="http://a:1", HTTP_PROXY="http://a:1").level is Level.OK


@pytest.mark.parametrize("kind", ["http_proxy", "https_proxy", "all_proxy", "no_proxy"])
def test_spellings_that_contradict_each_other(kind: str, found: Set) -> None:
    both = {"http_proxy": "http://a:1", "https_proxy": "http://a:1"}
    finding = found(**{**both, kind: "http://a:1", kind.upper(): "http://b:2"})
    assert finding.level is Level.FAIL
    assert f"{kind}=http://a:1 and {kind.upper()}=http://b:2 differ" in finding.found
    assert f'export {kind.upper()}="${kind}"' in lines(finding)


def test_without_a_scheme_apt_refuses(found: Set) -> None:
    finding = found(http_proxy="proxy:3128", https_proxy="http://proxy:3128")
    assert finding.level is Level.FAIL
    assert "Unsupported proxy configured" in finding.found
    assert lines(finding) == ['export http_proxy="http://$http_proxy"']


def test_without_a_scheme_and_without_apt_it_is_a_note(found: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    finding = found(http_proxy="proxy:3128")
    assert finding.level is Level.NOTE
    assert "has no scheme" in finding.found


@pytest.mark.parametrize(
    "value", ["http://proxy:port", "http://", "ftp://proxy:21", "http://proxy:99999", "http://[::1", "://"]
)
def test_what_is_no_address_of_a_proxy(value: str, found: Set) -> None:
    finding = found(http_proxy=value, https_proxy="http://a:1")
    assert finding.level is Level.FAIL
    assert "is no address of a proxy" in finding.found
    assert "unset http_proxy" in lines(finding)


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "socks4"])
def test_socks_without_its_libraries(scheme: str, found: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"http_proxy": "http://a:1", "https_proxy": "http://a:1", "ALL_PROXY": f"{scheme}://proxy:1080"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    finding = found(**values)
    assert finding.level is Level.FAIL
    assert "SOCKS" in finding.found
    assert lines(finding) == ["unset ALL_PROXY"]

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert found(**values).level is Level.OK


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY", "all_proxy"])
def test_apt_reads_only_small_letters(name: str, found: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = found(**{name: "http://proxy:3128"})
    assert finding.level is Level.NOTE
    assert "apt" in finding.found
    assert f'export http_proxy="${name}"' in lines(finding)

    monkeypatch.setenv("PATH", "/nowhere")
    assert found().level is Level.OK


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("localhost,.example.com", Level.OK),
        ("localhost, .example.com", Level.OK),
        ("*", Level.OK),
        ("localhost .example.com", Level.NOTE),
        ("localhost;.example.com", Level.NOTE),
        ("*.example.com", Level.NOTE),
        ("http://mirror.example.com", Level.NOTE),
    ],
)
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_exceptions_that_no_tool_or_only_one_reads(name: str, value: str, level: Level, found: Set) -> None:
    assert found(**{name: value}).level is level


def test_the_repair_of_exceptions_separates_them_with_commas(found: Set) -> None:
    finding = found(no_proxy="localhost; .example.com")
    (line,) = lines(finding)
    answer = subprocess.run(
        ["/bin/sh", "-c", f"PATH=/usr/bin:/bin; {line}; echo $no_proxy"],
        env={"no_proxy": "localhost; .example.com"},
        capture_output=True,
        text=True,
    )
    assert answer.stdout == "localhost,.example.com\n"


def test_pips_own_setting_is_read_by_pip_alone(found: Set) -> None:
    finding = found(PIP_PROXY="http://u:secret@proxy:3128")
    assert finding.level is Level.NOTE
    assert "secret" not in finding.found + finding.fix
    assert lines(finding) == ['export https_proxy="$PIP_PROXY"', 'export http_proxy="$https_proxy"']

    value = "http://u:secret@proxy:3128"
    assert found(http_proxy=value, https_proxy=value).level is Level.OK, "the same as the variables"
    assert found(http_proxy="http://b:1", https_proxy="http://b:1").level is Level.NOTE


def test_pips_setting_comes_from_its_files_too(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nproxy = http://proxy:3128\n")
    env = {**os.environ, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    program = "from archwright.indexes import index_settings; print(index_settings().proxy)"
    answer = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert answer.stdout == "http://proxy:3128\n"
    assert index_settings().proxy is None


def test_no_password_is_shown_or_repeated(found: Set) -> None:
    finding = found(
        http_proxy="user:secret@a:1",
        HTTP_PROXY="http://user:secret@b:port",
        ALL_PROXY="socks5://user:secret@c:1",
        PIP_PROXY="http://user:secret@d:1",
    )
    assert "secret" not in str(finding.as_dict())
    assert "user" not in finding.found


@given(st.text(alphabet="ab:/.%$", max_size=12), st.sampled_from(["", "http://", "socks5h://", "//"]))
def test_a_password_of_any_shape_is_hidden(word: str, scheme: str) -> None:
    shown = without_password(f"{scheme}user:S3CRET{word}@proxy:1")
    assert "S3CRET" not in shown
    assert shown.endswith("proxy:1")


@pytest.fixture
def proxies() -> Iterator[list[tuple[str, list[bytes]]]]:
    """Two servers that answer like a proxy, and what each was asked."""
    made, servers = [], []
    for _ in range(2):
        server = socket.create_server(("127.0.0.1", 0))
        asked: list[bytes] = []
        threading.Thread(target=_serve, args=(server, asked), daemon=True).start()
        made.append((f"127.0.0.1:{server.getsockname()[1]}", asked))
        servers.append(server)
    yield made
    for server in servers:
        server.close()


def _serve(server: socket.socket, asked: list[bytes]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            asked.append(connection.recv(4096).partition(b"\r\n")[0])
            connection.sendall(b"HTTP/1.1 503 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def ask(tool: str, tmp_path: Path, **settings: str) -> str:
    """Have a real tool fetch something from a host that does not exist."""
    from uv import find_uv_bin

    url = "http://host.invalid/simple"
    (tmp_path / "x.in").write_text("nothing-x\n")
    fetch = f"import httpx2; print(httpx2.Client(timeout=5).get('{url}').status_code)"
    solve = [find_uv_bin(), "pip", "compile", "--no-config", "--no-cache", "--index-url", url, str(tmp_path / "x.in")]
    command: list[str] = {"uv": solve, "this tool": [sys.executable, "-c", fetch]}[tool]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "UV_HTTP_RETRIES": "0", **settings}
    answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    return answer.stdout + answer.stderr


def test_the_tools_really_disagree_when_spellings_contradict(
    proxies: list[tuple[str, list[bytes]]], tmp_path: Path
) -> None:
    (small, of_small), (capital, of_capital) = proxies
    settings = {"http_proxy": f"http://{small}", "HTTP_PROXY": f"http://{capital}"}

    ask("this tool", tmp_path, **settings)
    assert (len(of_small), len(of_capital)) == (1, 0)

    ask("uv", tmp_path, **settings)
    assert (len(of_small), len(of_capital)) == (1, 1)


def test_socks_really_does_not_work_here(tmp_path: Path) -> None:
    import importlib.util

    if importlib.util.find_spec("socksio"):
        pytest.skip("socksio is installed")
    assert "socksio" in ask("this tool", tmp_path, http_proxy="socks5://127.0.0.1:9")
