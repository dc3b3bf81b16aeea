"""What callers do wrong, and what they cannot reach however they write it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slotwise.dispatcher.http.calls import MAX_BODY_BYTES
from slotwise.model.ids import JobId
from tests.service.served import TOKEN, Served, served
from tests.unit.worlds import spec

Busy = tuple[Served, dict[str, JobId]]
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("edges")) as made:
        made.submit(name="one")
        yield made


def problem(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert set(found) == {"type", "title", "status", "detail"}
    assert found["status"] == status
    assert "Traceback" not in answer.text
    return str(found["detail"])


def test_every_mistake_is_a_problem_and_changes_nothing(service: Served) -> None:
    before = list(service.master.dispatcher.jobs)
    good = msgspec.to_builtins(spec())
    with service.client() as client:
        problem(client.get("/v1/nothing"), 404)
        problem(client.get("/"), 404)
        problem(client.get("/v1/jobs/"), 404)
        problem(client.get("/v1/jobs/none"), 404)
        for path in (
            "",
            "/plan",
            "/events",
            "/logs",
            "/logs/x",
            "/explain",
            "/rescales/history",
            "/resource-requirements",
        ):
            assert "none" in problem(client.get(f"/v1/jobs/none{path}"), 404)
        problem(client.patch("/v1/jobs/none"), 404)
        problem(client.put("/v1/jobs/none/resource-requirements", json={"jobVertexResourceRequirements": {}}), 404)
        problem(client.get("/v1/taskmanagers/none"), 404)
        problem(client.patch("/v1/taskmanagers/none?blocked=true"), 404)
        problem(client.patch("/v1/taskmanagers/none"), 400)
        wrong = client.delete("/v1/jobs")
        problem(wrong, 405)
        assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
        problem(client.request("BREW", "/v1/overview"), 405)
        problem(client.options("/v1/overview"), 405)
        job = before[0]
        assert "mode" in problem(client.patch(f"/v1/jobs/{job}?mode=stop"), 400)
        for query in (
            "offset=-1",
            "limit=x",
            "limit=1e3",
            "order=size",
            "state=SLEEPING",
            "offset=99999999999999999999",
        ):
            problem(client.get(f"/v1/jobs/overview?{query}"), 400)
        for body in (
            "",
            "{",
            "[]",
            "null",
            '"x"',
            json.dumps({**good, "more": 1}),
            "[" * 100_000,
            "\ud800".encode("utf-8", "surrogatepass"),
        ):
            detail = problem(client.post("/v1/jobs", content=body, headers=JSON), 400)
            assert "JobSpec" in detail
        for media in ("text/plain", "application/x-www-form-urlencoded", "application/xml"):
            problem(client.post("/v1/jobs", content=json.dumps(good), headers={"Content-Type": media}), 415)
        problem(client.post("/v1/jobs", content=b" " * (MAX_BODY_BYTES + 1), headers=JSON), 413)

        def endless() -> Iterator[bytes]:
            for _ in range(MAX_BODY_BYTES // 65536 + 2):
                yield b" " * 65536

        problem(client.post("/v1/jobs", content=endless(), headers=JSON), 413)
        problem(client.post("/v1/jobs", json=good, headers={"Idempotency-Key": "k" * 201}), 400)
        problem(client.post("/v1/jobs", json={**good, "min_executors": -1}), 409)
        requirements = f"/v1/jobs/{job}/resource-requirements"
        for bounds in (
            {"lowerBound": -1, "upperBound": 2},
            {"lowerBound": 1},
            {"lowerBound": 1, "upperBound": 2, "x": 3},
        ):
            wanted: Any = {"jobVertexResourceRequirements": {"application": {"parallelism": bounds}}}
            problem(client.put(requirements, json=wanted), 400)
        wanted = {"jobVertexResourceRequirements": {"other": {"parallelism": {"lowerBound": 1, "upperBound": 2}}}}
        assert "other" in problem(client.put(requirements, json=wanted), 400)
    assert list(service.master.dispatcher.jobs) == before


def test_unknown_fields_are_refused_at_any_depth(service: Served) -> None:
    good = msgspec.to_builtins(spec())
    with service.client() as client:
        for wrong in ({**good, "programme": "/x.py"}, {**good, "driver": {**good["driver"], "core": 2}}):
            assert "unknown field" in problem(client.post("/v1/jobs", json=wrong), 400)


def test_a_submission_is_accepted_once_under_its_key(service: Served) -> None:
    good = msgspec.to_builtins(spec(name="twice"))
    with service.client() as client:
        answers = [client.post("/v1/jobs", json=good, headers={"Idempotency-Key": "twice"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [202] * 3
        assert len({answer.json()["jid"] for answer in answers}) == 1
        problem(client.post("/v1/jobs", json={**good, "name": "x"}, headers={"Idempotency-Key": "twice"}), 409)


def test_what_is_not_http_ends_its_own_connection_alone(service: Served) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00",
        b"GET /v1/jobs\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", service.master.port)) as connection:
            connection.sendall(garbage)
            connection.settimeout(20)
            assert b"200" not in connection.recv(200)
    with service.client() as client:
        assert client.get("/healthz").status_code == 200


# ----------------------------------------------------------------------------------------------- the jobs' overview


def test_jobs_are_filtered_ordered_and_shown_in_parts(busy: Busy) -> None:
    service, jobs = busy
    with service.client() as client:

        def names(query: str = "") -> list[str]:
            answer = client.get(f"/v1/jobs/overview{query}")
            assert answer.status_code == 200, answer.text
            found = answer.json()
            assert found["total"] >= len(found["jobs"])
            return [job["name"] for job in found["jobs"]]

        everything = ["fine", "fails", "cancelled", "shop", "long", "waits"]
        assert names() == everything
        assert names("?state=RUNNING") == ["shop", "long"]
        assert names("?state=FINISHED,FAILED") == ["fine", "fails"]
        assert names("?state=CREATED") == names("?state=WAITING_FOR_RESOURCES") == ["waits"]
        assert names("?name=AI") == ["fails", "waits"]
        assert names("?name=nobody") == []
        assert names("?order=name") == sorted(everything)
        assert names("?order=-name") == sorted(everything, reverse=True)
        assert names("?offset=1&limit=2") == everything[1:3]
        assert names("?offset=99") == []
        assert names("?limit=0") == []
        assert names("?order=-start")[0] in everything
        assert client.get("/v1/jobs/overview?limit=1&state=RUNNING").json()["total"] == 2
        assert len(jobs) == len(everything)


# ----------------------------------------------------------------------------------------------- names that are text


def test_html_in_names_stays_text(service: Served) -> None:
    name = "<script>alert(1)</script>&\"'"
    job = service.submit(name=name)
    with service.client() as client:
        for path in (f"/v1/jobs/{job}", "/v1/jobs/overview", f"/v1/jobs/{job}/plan", "/v1/docs"):
            answer = client.get(path)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "<script>alert" not in answer.text or answer.headers["content-type"] == "application/json"
        assert client.get(f"/v1/jobs/{job}").json()["name"] == name
        for path in ("/v1/<script>alert(1)</script>", "/v1/jobs/<img src=x>", f"/v1/jobs/{job}/logs/<b>.out"):
            answer = client.get(path)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers.get("x-content-type-options") == "nosniff"


@pytest.mark.parametrize(
    "name",
    [
        *("../job.json", "..%2fjob.json", "%2e%2e%2fjob.json", "..", ".", "%2e%2e", "/etc/passwd", "%2Fetc%2Fpasswd"),
        *(
            "..\\job.json",
            "x%00",
            "driver-1.out%00.txt",
            "....//job.json",
            ".hidden",
            "a" * 300,
            "%ff",
            "driver-1.out/../x",
        ),
    ],
)
def test_log_names_lead_nowhere_else(busy: Busy, tmp_path: Path, name: str) -> None:
    service, jobs = busy
    (worker, *_) = service.master.resource_manager.slots.workers
    folder = service.master.options.directory / "jobs" / jobs["finished"]
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "job.json").write_text("secret")
    for base in (f"/v1/jobs/{jobs['finished']}", "/v1/jobmanager", f"/v1/taskmanagers/{worker}"):
        # As it stands: clients tidy paths up before they send them.
        with socket.create_connection(("127.0.0.1", service.master.port)) as connection:
            head = f"Host: x\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            connection.sendall(f"GET {base}/logs/{name} HTTP/1.1\r\n{head}".encode())
            answer = b"".join(iter(lambda connection=connection: connection.recv(65536), b""))  # type: ignore[misc]
        assert answer.split()[1] in (b"400", b"404"), answer
        assert b"secret" not in answer
        assert b"root:" not in answer


def test_logs_are_served_from_an_offset_and_to_be_saved(busy: Busy) -> None:
    service, jobs = busy
    folder = service.master.options.directory / "jobs" / jobs["failed"] / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "driver-1.out").write_bytes(b"0123456789")
    path = f"/v1/jobs/{jobs['failed']}/logs/driver-1.out"
    (worker, *_) = service.master.resource_manager.slots.workers
    with service.client() as client:
        assert client.get(path).content == b"0123456789"
        assert client.get(f"{path}?offset=7").content == b"789"
        assert client.get(f"{path}?offset=70").content == b""
        assert client.get(f"{path}?follow=1").content == b"0123456789"
        saved = client.get(f"{path}?download=1")
        assert saved.headers["content-disposition"].startswith('attachment; filename="driver-1.out"')
        assert saved.headers["content-type"] == "text/plain; charset=utf-8"
        assert client.get("/v1/jobmanager/logs/master.log").text == "the master's own words\n"
        assert client.get(f"/v1/taskmanagers/{worker}/logs/{worker}.log").text == "the worker's words\n"
        assert client.get("/v1/jobmanager/config").json() == [{"key": "heartbeat.interval", "value": "10 s"}]
