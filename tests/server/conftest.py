"""A home with one contract, and the commands of this program on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import stores
from tests.server.commanding import TOKEN, Ran, Run
from tests.tools.driving import CONTRACT

from forbear.server import cli


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home with one contract and its key."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "contracts").mkdir()
    (home / "contracts" / "exp.toml").write_text(CONTRACT, encoding="utf-8")
    monkeypatch.setenv("FORBEAR_HOME", str(home))
    for name, value in stores.environment(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("EXP_TOKEN", "secret-of-exp")
    monkeypatch.delenv("FORBEAR_OPERATOR_TOKEN", raising=False)
    return home


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> Ran:
        capsys.readouterr()
        code = cli.run(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Ran(code, out, err)

    return command


@pytest.fixture
def operator(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home has a token, and this process knows it."""
    (home / "config.toml").write_text(f'operator_token = "{TOKEN}"\n', encoding="utf-8")
    monkeypatch.setenv("FORBEAR_OPERATOR_TOKEN", TOKEN)
