"""What those who run a cluster ask of a real master over HTTP: readiness and metrics. No Spark."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from slotwise.master import Master
from slotwise.metrics.names import METRICS
from slotwise.model.errors import ClusterError
from tests.integration.test_master import TOKEN, full, until, with_master
from tests.unit.worlds import spec

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


async def calls(master: Master, act: Callable[[httpx.Client], Any]) -> Any:
    """``act`` with a client of ``master``, outside of its event loop."""

    def run() -> Any:
        with httpx.Client(base_url=master.url, headers=AUTHORIZED, trust_env=False) as client:
            return act(client)

    return await asyncio.to_thread(run)


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


async def scrape(master: Master) -> dict[tuple[str, tuple[str, ...]], float]:
    answer = await calls(master, lambda client: client.get("/metrics"))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return samples(answer.text)


def test_metrics_are_for_those_who_may_look_and_readiness_for_everybody(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        def with_client(client: httpx.Client) -> None:
            del client.headers["authorization"]
            assert client.get("/metrics").status_code == 401
            assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert client.get("/readyz").json() == {"status": "ready"}

        await calls(master, with_client)

    with_master(tmp_path, act)


def test_a_master_that_has_lost_the_lead_or_a_component_is_not_ready(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        assert (await scrape(master))["slotwise_ready", ()] == 1
        master._end("rm failed: planted")
        answer = await calls(master, lambda client: client.get("/readyz"))
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert "rm failed: planted" in answer.json()["detail"]
        assert (await scrape(master))["slotwise_ready", ()] == 0

    with_master(tmp_path, act)

    async def lost(master: Master) -> None:
        master._grant.lost.set_result("another master leads")
        answer = await calls(master, lambda client: client.get("/readyz"))
        assert (answer.status_code, "another master leads" in answer.json()["detail"]) == (503, True)

    with_master(tmp_path, lost)


def test_requests_are_timed_by_route_and_status(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        job = await master.submit(spec())

        def with_client(client: httpx.Client) -> None:
            for path in (f"/v1/jobs/{job}", "/v1/jobs/job-none", "/v1/jobs/job-nowhere", "/nothing/here", "/v1/jobs"):
                client.get(path)
            client.request("BREW", "/v1/overview")

        await calls(master, with_client)
        found = await scrape(master)
        name = "slotwise_http_request_duration_seconds_count"
        assert found[name, ("GET", "/v1/jobs/{job}", "200")] == 1
        assert found[name, ("GET", "/v1/jobs/{job}", "404")] == 2
        assert found[name, ("GET", "other", "404")] == 1
        assert not [key for key in found if "job-none" in key[1] or "BREW" in key[1] or "/nothing/here" in key[1]]

    with_master(tmp_path, act)


def test_submissions_store_errors_checks_and_the_epoch_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(master: Master) -> None:
        await master.submit(spec(), key="one")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", full)
            with pytest.raises(ClusterError):
                await master.submit(spec(name="two"), key="two")
        await until(lambda: master.resource_manager.checks > 0)
        found = await scrape(master)
        assert found["slotwise_submissions_total", ("accepted",)] == 1
        assert found["slotwise_submissions_total", ("refused",)] == 1
        assert found["slotwise_store_errors_total", ("job",)] == 1
        assert found["slotwise_store_errors_total", ("result",)] == 0
        assert found["slotwise_resource_check_duration_seconds_count", ()] == master.resource_manager.checks
        assert found["slotwise_mailbox_messages", ("dispatcher",)] == 0
        assert found["slotwise_jobs", ("WAITING_FOR_RESOURCES",)] == 1
        epochs.append(found["slotwise_leadership_epoch", ()])
        assert found["slotwise_slots_missing", ("NO_WORKERS",)] == 3
        # All that has no labels is there at once, and nothing that is not documented.
        plain = {name for name, metric in METRICS.items() if not metric.labels and metric.kind != "histogram"}
        assert plain <= {name for name, _ in found}

    epochs: list[float] = []
    with_master(tmp_path / "a", act)
    assert epochs == [1]


def test_a_master_that_comes_back_has_the_next_epoch_and_its_jobs(tmp_path: Path) -> None:
    async def first(master: Master) -> None:
        await master.submit(spec())

    async def second(master: Master) -> None:
        found = await scrape(master)
        assert found["slotwise_leadership_epoch", ()] == 2
        assert found["slotwise_submissions_total", ("accepted",)] == 0
        assert sum(value for (name, _), value in found.items() if name == "slotwise_jobs") == 1

    with_master(tmp_path, first)
    with_master(tmp_path, second)
