"""A store that a newer program upgrades while processes of this one run on it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from tests.crash.test_crash import CONTRACT, STATUS, SUBMIT
from tests.crash.world import Nursery, fast, nursed, world
from tests.server.commanding import child_environment

from forbear.server.fake import Answer
from forbear.storage import migrations, schema

pytestmark = [pytest.mark.anyio, pytest.mark.sqlite, pytest.mark.requirement("D13")]

NEWER = dedent(
    """
    import sys
    from pathlib import Path
    from alembic import op
    import sqlalchemy as sa
    from forbear.storage import migrations, schema
    from forbear.storage.database import Database

    folder = Path(sys.argv[2])
    (folder / "__init__.py").write_text("")
    migrations.__file__ = str(folder / "__init__.py")
    schema.GENERATION = "9999"
    Database(Path(sys.argv[1])).close_writer()
    """
)
MIGRATION = dedent(
    """
    import sqlalchemy as sa
    from alembic import op
    revision, down_revision = "9999", "{before}"
    def upgrade():
        op.add_column("attempts", sa.Column("colour", sa.Text(), server_default="blue"))
        op.create_table("shades", sa.Column("name", sa.Text(), primary_key=True))
        {also}
    """
)
PATIENT = CONTRACT.replace('timeout = "2s"', 'timeout = "30s"')
BREAKS = "op.execute(\"UPDATE compatibility SET outcomes_from = '9999'\")"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursed() as nursery:
        yield nursery


def upgraded(home: Path, also: str = "pass") -> None:
    """Open the store with a program that is one generation ahead."""
    folder = home.with_name("newer")
    shutil.copytree(Path(migrations.__file__).parent, folder)
    script = MIGRATION.format(before=schema.GENERATION, also=also)
    (folder / "versions" / "9999_next.py").write_text(script)
    command = [sys.executable, "-c", NEWER, str(home / "forbear.db"), str(folder)]
    subprocess.run(command, env=child_environment(), check=True)


async def test_an_older_process_stores_what_came_of_its_request_and_sends_no_more(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, PATIENT) as on:
        body = {"id": "exp_0", "state": "queued"}
        on.provider.script(SUBMIT, Answer(202, body, gate="upgrade", effect=True))
        on.start("sales")
        await on.provider.arrived(SUBMIT)
        upgraded(on.home)
        on.provider.release("upgrade")
        await on.until(lambda: {"superseded": True} in on.said(0))

        [attempt] = on.rows("SELECT outcome, status, colour FROM attempts")
        assert attempt == {"outcome": "answered", "status": 202, "colour": "blue"}
        row = on.operation()
        assert (row["state"], row["provider_job"]) == ("waiting", "exp_0")
        assert on.provider.count(STATUS) == 0
        assert on.rows("SELECT 1 FROM processes") == []
        assert "restart it with the newer program" in on.logs()
        assert "Traceback" not in on.logs()


async def test_an_upgrade_that_changes_how_outcomes_are_stored_leaves_them_unknown(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, PATIENT) as on:
        on.provider.script(SUBMIT, Answer(202, {}, gate="upgrade", effect=True))
        on.start("sales")
        await on.provider.arrived(SUBMIT)
        upgraded(on.home, BREAKS)
        on.provider.release("upgrade")
        await on.until(lambda: {"superseded": True} in on.said(0))
        [attempt] = on.rows("SELECT outcome FROM attempts")
        assert attempt == {"outcome": None}, "whoever finds it open reconciles it"
        assert "cannot be stored" in on.logs()


async def test_an_idle_process_notices_with_its_next_sign_of_life(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, PATIENT) as on:
        on.start("sales", **fast(10))
        await on.at_rest()
        arrivals = len(on.provider.arrivals)
        upgraded(on.home)
        await on.until(lambda: {"superseded": True} in on.said(0))
        assert len(on.provider.arrivals) == arrivals
