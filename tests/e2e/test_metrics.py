"""`/metrics`: what a real run leaves in it, read by the parser of Prometheus itself."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
import yaml
from alembic.migration import MigrationContext
from alembic.operations import Operations
from mcp import Client, stdio_client
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests import stores
from tests.e2e.harness import (
    NO_RESULT,
    PATIENCE,
    TRANSFER,
    WRITE,
    bank,
    says,
    serving,
    stage,
)
from tests.e2e.test_coalescing import SHARED, customer
from tests.e2e.test_retention import until_forgotten
from tests.opened import opened, rewrite

from forbear.rules.model import Option
from forbear.server.app import App, running
from forbear.server.config import Settings
from forbear.server.console.meters import MOST_NAMES
from forbear.server.console.sessions import Sessions
from forbear.server.console.site import build
from forbear.server.fake import Answer, Drop, retry_after
from forbear.storage.counters import COUNTERS_SQLITE
from forbear.storage.schema import tallies

pytestmark = pytest.mark.anyio

DAY = 86_400_000
TOP = Path(__file__).parents[2]


class Scrape:
    """What one scrape says. Reading it fails where the format is wrong."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {found.name: found for found in text_string_to_metric_families(text)}
        names = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)
        assert names == [(each, kind) for each, kind in dict(names).items()], "told twice"
        assert re.findall(r"^# HELP (\S+) \S.*\.$", text, re.M) == [name for name, _ in names]
        series = [line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"]
        assert len(series) == len(set(series)), "the same series twice"
        for name, kind in names:
            assert re.fullmatch(r"forbear(_[a-z]+)+", name)
            assert name.endswith("_total") is (kind == "counter"), name
            if kind == "histogram":
                self._histogram(self.families[name])

    @staticmethod
    def _histogram(family: Metric) -> None:
        buckets = [one for one in family.samples if one.name.endswith("_bucket")]
        bounds = [float(one.labels["le"]) for one in buckets]
        values = [one.value for one in buckets]
        assert bounds == sorted(bounds)
        assert bounds[-1] == float("inf")
        assert values == sorted(values)
        (count,) = (one.value for one in family.samples if one.name.endswith("_count"))
        assert count == values[-1]

    def of(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels."""
        return sum(
            one.value
            for family in self.families.values()
            for one in family.samples
            if one.name == name and labels.items() <= one.labels.items()
        )

    def values(self, name: str, label: str) -> set[str]:
        return {
            one.labels[label]
            for family in self.families.values()
            for one in family.samples
            if one.name == name
        }


async def scraped(app: App) -> Scrape:
    """What a monitor with its token gets from the console."""
    site = build(app, port=8377, url="http://127.0.0.1:8377")
    token = Sessions(app.settings.home, app.store.key, app.clock, app.random).meter_file.read_text()
    sent = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=site), base_url="http://127.0.0.1:8377", headers=sent
    ) as monitor:
        answer = await monitor.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        told = (await monitor.get("/metrics.json")).json()
    scrape = Scrape(answer.text)
    names = {one.name for each in scrape.families.values() for one in each.samples}
    assert names <= told.keys()
    return scrape


# --- a real run -----------------------------------------------------------------------------


async def test_what_a_run_did_is_counted_once_and_in_its_place(tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT, calls={"customer": SHARED}) as on:
        on.script(says("queued"), Answer(503), retry_after("300", 429), Drop(), says("done"))
        on.provider.script("GET /customers/c_1", Answer(200, json={"id": "c_1"}))
        await customer(on)
        await customer(on, task="two")
        job = await on.submit(task="one")
        await on.submit(task="one")  # the same caller once more
        await on.submit(task="two")
        await on.end_of(job)
        scrape = await scraped(on.app)
        of = scrape.of
        assert of("forbear_operations_accepted_total", provider="exp", kind="job") == 1
        assert of("forbear_operations_accepted_total", kind="call") == 1
        assert of("forbear_operations_ended_total", provider="exp", state="succeeded") == 2
        assert of("forbear_operations") == 0
        arrived = on.provider.arrivals
        assert of("forbear_requests_total") == len(arrived)
        assert of("forbear_requests_total", status="429") == 1
        assert of("forbear_requests_total", status="503") == 1
        assert of("forbear_requests_total", outcome="no_answer", status="none") == 1
        assert of("forbear_requests_saved_total", how="joined") == 2
        assert of("forbear_requests_saved_total", how="stored") == 1
        assert of("forbear_waits_total", source="provider_retry_after") == 1
        assert of("forbear_wait_seconds_total", source="provider_retry_after") >= 300
        assert of("forbear_waits_total", source="local_backoff") >= 3
        assert of("forbear_requests_open") == 0
        assert of("forbear_processes_alive", role="serve") == 1
        assert of("forbear_processes_without_worker") == 0
        assert of("forbear_disk_free_bytes") > 0


async def test_cases_and_decisions_are_counted_with_the_time_they_took(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER) as on:
        on.provider.script(WRITE, Drop())
        write = (await on.write())["operation_id"]
        on.clock.advance(2 * 3_600_000)
        before = await scraped(on.app)
        assert before.of("forbear_open_cases", reason="unclear_write") == 1
        assert before.of("forbear_oldest_case_age_seconds", reason="unclear_write") >= 7_200
        assert before.of("forbear_unclear_operations", age="under_1d") == 1
        assert before.of("forbear_unclear_operations") == 1
        assert before.of("forbear_oldest_unclear_age_seconds") >= 7_200
        assert before.of("forbear_operations", state="escalated", reason="unclear_write") == 1
        assert before.of("forbear_decision_seconds_count") == 0
        await on.decide(write, Option.CONFIRM_NOT_DONE)
        after = await scraped(on.app)
        assert after.of("forbear_cases_opened_total", reason="unclear_write") == 1
        assert after.of("forbear_decisions_total", reason="unclear_write") == 1
        assert after.of("forbear_decision_seconds_bucket", le="3600") == 0
        assert after.of("forbear_decision_seconds_bucket", le="14400") == 1
        assert 7_200 <= after.of("forbear_decision_seconds_sum") < 7_300
        assert after.of("forbear_open_cases") == after.of("forbear_unclear_operations") == 0


async def test_what_nobody_can_carry_and_who_carries_nothing_is_told(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.submit()
        assert (await scraped(on.app)).of("forbear_operations_unserved") == 0
    settings = Settings.load({"FORBEAR_HOME": str(tmp_path), **stores.environment(tmp_path)})
    idle = serving(tmp_path)
    idle.args.append("--no-worker")
    async with running(settings, role="console", worker=False) as app:
        async with Client(stdio_client(idle)) as client:
            await client.list_tools()
            scrape = await scraped(app)
            assert scrape.of("forbear_operations", state="waiting", reason="provider") == 1
            assert scrape.of("forbear_operations_unserved") == 1
            assert scrape.of("forbear_processes_alive") == 0
            assert scrape.of("forbear_processes_without_worker") == 1
        assert (await scraped(app)).of("forbear_processes_without_worker") == 0


async def test_commits_of_all_processes_are_in_one_histogram(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        job = await on.submit()
        await on.end_of(job)
        async with asyncio.timeout(PATIENCE):
            while not (await scraped(on.app)).of("forbear_commit_seconds_count"):
                news = on.app.store.news
                on.clock.advance(10_001)  # to the next sign of life
                await news.wait()
    settings = Settings.load({"FORBEAR_HOME": str(tmp_path), **stores.environment(tmp_path)})
    async with running(settings, role="console", worker=False) as other:
        assert (await scraped(other)).of("forbear_commit_seconds_count") > 0


# --- what a counter owes --------------------------------------------------------------------


async def test_no_counter_falls_when_retention_takes_what_it_counted(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",)) as on:
        job = await on.submit()
        await on.end_of(job)
        before = await scraped(on.app)
        await on.settled()
        await on.clock.asleep(3)
        await on.at(on.now + 500 * DAY)
        await until_forgotten(on, job)
        after = await scraped(on.app)
        for family in before.families.values():
            if family.type == "counter":
                for one in family.samples:
                    assert after.of(one.name, **one.labels) >= one.value, one
        assert after.of("forbear_requests_total") == 1


@pytest.mark.sqlite  # no store on a server is so old
async def test_an_older_store_begins_with_what_its_rows_tell(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER) as on:
        on.provider.script(WRITE, Drop())
        write = (await on.write())["operation_id"]
        on.clock.advance(3_600_000)
        await on.decide(write, Option.CONFIRM_NOT_DONE)
    query = sa.select(tallies).order_by(tallies.c.name, tallies.c.labels)
    rows_tell = ("waits", "wait_ms", "saved", "commit_times", "commit_ms")
    counted = [row for row in opened(tmp_path, query) if row["name"] not in rows_tell]
    assert len(counted) == 7
    migration = importlib.import_module("forbear.storage.migrations.versions.0009_tallies")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'forbear.db'}")
    with engine.begin() as store:
        for trigger in COUNTERS_SQLITE:
            store.exec_driver_sql(f"DROP TRIGGER {trigger.split()[2]}")
        store.exec_driver_sql("DROP TABLE tallies")
        with Operations.context(MigrationContext.configure(store)):
            migration.upgrade()
    engine.dispose()
    assert opened(tmp_path, query) == counted


async def test_names_are_escaped_and_only_so_many_are_told_apart(tmp_path: Path) -> None:
    evil = 'a"b\\n\nforbear_fake_total 9'
    async with stage(tmp_path) as on:
        for number, name in enumerate((evil, *(f"p{number}" for number in range(200)))):
            labels = json.dumps([name, "answered", "2xx"])
            row = {"day": 0, "name": "requests", "labels": labels, "value": 1_000 - number}
            rewrite(tmp_path, sa.insert(tallies).values(row))
        scrape = await scraped(on.app)
        assert scrape.of("forbear_requests_total", provider=evil) == 1_000
        assert "forbear_fake" not in scrape.families
        named = scrape.values("forbear_requests_total", "provider")
        assert len(named) == MOST_NAMES + 1
        assert scrape.of("forbear_requests_total") == sum(1_000 - n for n in range(201))


# --- alert rules ----------------------------------------------------------------------------


async def test_every_alert_watches_figures_and_labels_that_there_are(tmp_path: Path) -> None:
    rules = yaml.safe_load((TOP / "docs" / "alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 8
    async with stage(tmp_path) as on:
        await on.submit()
        scrape = await scraped(on.app)
    told = (TOP / "docs" / "console.md").read_text()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scrape.text, re.M))
    for rule in alerts:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        used = set(re.findall(r"\b(?:forbear|up)\w*", rule["expr"]))
        assert used
        for name in used:
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert family in kinds, name
            counts = kinds[family] != "gauge"
            assert counts is (f"rate({name}" in rule["expr"]), "a counter is looked at by its rate"
    for name in kinds:
        assert f"`{name}`" in told, f"docs/console.md does not tell of {name}"
