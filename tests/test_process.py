"""Running programs, and what of the user's environment they see (case C4)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from archwright.process import STRAY, CommandFailed, clean_environment, run, stray_variables

C4 = ["CUDA_HOME", "NVCC_PREPEND_FLAGS", "CXX", "CPATH", "LD_LIBRARY_PATH"]


@pytest.mark.parametrize("name", [*C4, "NVCC_APPEND_FLAGS", "CC", "CXXFLAGS", "LDFLAGS", "LIBRARY_PATH", "PYTHONPATH"])
def test_c4_a_stray_variable_does_not_reach_a_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/stray")
    monkeypatch.setenv("ARCHWRIGHT_TEST_KEPT", "yes")

    seen = run([sys.executable, "-c", "import os; print(dict(os.environ))"], env=clean_environment())

    assert name not in eval(seen)
    assert eval(seen)["ARCHWRIGHT_TEST_KEPT"] == "yes"
    assert os.environ[name] == "/stray", "the user's own environment is left alone"


def test_c4_stray_variables_are_named_with_their_values() -> None:
    assert stray_variables({"CUDA_HOME": "/old", "PATH": "/bin", "CXX": ""}) == {"CUDA_HOME": "/old"}


def test_path_and_home_and_proxies_are_kept() -> None:
    assert not {"PATH", "HOME", "TMPDIR", "HTTPS_PROXY", "SSL_CERT_FILE", "CONDA_EXE"} & set(STRAY)


def test_a_command_gives_both_of_its_outputs(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), flush=True); print('err', file=sys.stderr)"
    assert run([sys.executable, "-c", code], cwd=tmp_path) == f"{tmp_path}\nerr\n"


def test_a_command_that_fails_is_named_with_its_last_words() -> None:
    with pytest.raises(CommandFailed) as caught:
        run([sys.executable, "-c", "print('last words'); raise SystemExit(3)"])

    assert caught.value.returncode == 3
    assert caught.value.output == "last words\n"
    assert "ended with status 3" in str(caught.value)
    assert sys.executable in str(caught.value)


def test_a_command_cannot_wait_for_the_keyboard() -> None:
    assert run([sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"]) == "''\n"


def test_output_that_is_no_text_does_not_stop_anything() -> None:
    code = r"import sys; sys.stdout.buffer.write(b'ok \xff\n')"
    assert run([sys.executable, "-c", code]).startswith("ok ")
