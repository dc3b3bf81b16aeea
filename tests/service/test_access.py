"""Who may make which call. What is expected is written down here by hand, beside the route table's own word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from starlette.routing import Mount, Route
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from slotwise.dispatcher.http.app import build_app
from slotwise.dispatcher.http.auth import SESSION_COOKIE
from slotwise.dispatcher.http.calls import Call
from slotwise.dispatcher.http.proxy import SparkUi
from slotwise.dispatcher.http.routes import table
from slotwise.dispatcher.tokens import Role
from slotwise.runtime.stream import stream_url
from tests.service.served import TOKEN, Served, served

ANYBODY = {"nobody", "join", "viewer", "submitter", "admin", "cluster"}
READERS = {"viewer", "submitter", "admin", "cluster"}
SUBMITTERS = {"submitter", "admin", "cluster"}
ADMINS = {"admin", "cluster"}
WORKERS = {"join", "cluster"}
EXPECTED = {
    "GET /healthz": ANYBODY,
    "GET /readyz": ANYBODY,
    "GET /metrics": READERS,
    "GET /v1/jobs/{job}/logs.zip": READERS,
    "POST /v1/session": ANYBODY,
    "POST /v1/session-codes": READERS,
    "GET /v1/session": READERS,
    "DELETE /v1/session": READERS,
    "GET /v1/tokens": ADMINS,
    "POST /v1/tokens": ADMINS,
    "DELETE /v1/tokens/{name}": ADMINS,
    "DELETE /v1/cluster": ADMINS,
    "PATCH /v1/taskmanagers/{worker}": ADMINS,
    "POST /v1/jobs": SUBMITTERS,
    "POST /v1/blobs/missing": SUBMITTERS,
    "PUT /v1/blobs/{sha256}": SUBMITTERS,
    "GET /v1/blobs/{sha256}": WORKERS,
    "PATCH /v1/jobs/{job}": SUBMITTERS,
    "PUT /v1/jobs/{job}/resource-requirements": SUBMITTERS,
    "GET /v1/overview": READERS,
    "GET /v1/config": READERS,
    "GET /v1/resources": READERS,
    "GET /v1/slots": READERS,
    "GET /v1/events": READERS,
    "GET /v1/taskmanagers": READERS,
    "GET /v1/taskmanagers/{worker}": READERS,
    "GET /v1/taskmanagers/{worker}/logs": READERS,
    "GET /v1/taskmanagers/{worker}/logs/{name}": READERS,
    "GET /v1/jobmanager/config": READERS,
    "GET /v1/jobmanager/environment": READERS,
    "GET /v1/jobmanager/logs": READERS,
    "GET /v1/jobmanager/logs/{name}": READERS,
    "GET /v1/openapi.json": READERS,
    "GET /v1/docs": READERS,
    "GET /v1/jobs": READERS,
    "GET /v1/jobs/overview": READERS,
    "GET /v1/jobs/{job}": READERS,
    "GET /v1/jobs/{job}/status": READERS,
    "GET /v1/jobs/{job}/config": READERS,
    "GET /v1/jobs/{job}/plan": READERS,
    "GET /v1/jobs/{job}/events": READERS,
    "GET /v1/jobs/{job}/exceptions": READERS,
    "GET /v1/jobs/{job}/execution-result": READERS,
    "GET /v1/jobs/{job}/explain": READERS,
    "GET /v1/jobs/{job}/resource-requirements": READERS,
    "GET /v1/jobs/{job}/rescales/config": READERS,
    "GET /v1/jobs/{job}/rescales/history": READERS,
    "GET /v1/jobs/{job}/logs": READERS,
    "GET /v1/jobs/{job}/logs/{name}": READERS,
    "GET /v1/jobs/{job}/spark-ui": READERS,
    "GET /v1/jobs/{job}/spark-ui/{page}": READERS,
}
REFUSED = {401, 403}


@dataclass
class Cast:
    service: Served
    tokens: dict[str, str | None]
    job: str


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cast]:
    with served(tmp_path_factory.mktemp("access")) as service:
        tokens: dict[str, str | None] = {"nobody": None, "cluster": TOKEN}
        tokens |= {role.value: service.token(f"the-{role.value}", role) for role in Role}
        yield Cast(service, tokens, service.submit())


def calls_of(service: Served) -> tuple[Call, ...]:
    return table(service.master, SparkUi(service.master))


def status(client: httpx.Client, method: str, path: str) -> int:
    # The stream of events has no end: its head is enough.
    with client.stream(method, path) as answer:
        return answer.status_code


def test_every_call_lets_in_whom_it_should_and_nobody_else(cast: Cast) -> None:
    calls = calls_of(cast.service)
    assert {f"{call.method} {call.template}" for call in calls} == set(EXPECTED)
    for call in calls:
        name = f"{call.method} {call.template}"
        path = call.template.format(job=cast.job, worker="w", name="n", page="p", sha256="0" * 64)
        for who, token in cast.tokens.items():
            with cast.service.client(token) as client:
                found = status(client, call.method, path)
            if who in EXPECTED[name]:
                # An open login without a body is a mistake in itself, which says that it was let in.
                assert found not in REFUSED, f"{who} may {name}, and got {found}"
            elif who == "nobody":
                assert found == 401, f"{who}: {name} gave {found}"
            else:
                assert found == 403, f"{who}: {name} gave {found}"
            assert found < 500


def test_every_route_of_the_application_is_in_the_table_or_known_to_be_elsewhere(cast: Cast) -> None:
    paths = {route.path for route in build_app(cast.service.master).routes if isinstance(route, Route | Mount)}
    assert paths >= {call.path for call in calls_of(cast.service)}


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer  x", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"],
)
def test_what_is_no_token_is_refused_everywhere(cast: Cast, header: str) -> None:
    with cast.service.client(None) as client:
        answer = client.get("/v1/overview", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert set(answer.json()) == {"type", "title", "status", "detail"}
    assert header.removeprefix("Bearer ") not in answer.text or not header.removeprefix("Bearer ").strip()


def test_the_workers_stream_takes_join_tokens_alone_and_no_browsers_session(cast: Cast) -> None:
    url = stream_url(cast.service.url)

    async def opens(headers: dict[str, str]) -> bool:
        try:
            async with connect(url, additional_headers=headers, proxy=None):
                return True
        except InvalidStatus:
            return False

    for who, token in cast.tokens.items():
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        assert asyncio.run(opens(headers)) is (who in {"join", "cluster"}), who
    with cast.service.client(None) as browser:
        browser.post("/v1/session", json={"token": TOKEN})
        cookie = f"{SESSION_COOKIE}={browser.cookies[SESSION_COOKIE]}"
    assert asyncio.run(opens({"Cookie": cookie})) is False


def test_head_is_let_in_as_get_is_and_streams_do_not_begin(cast: Cast) -> None:
    for who, expected in (("viewer", 200), ("join", 403), ("nobody", 401)):
        with cast.service.client(cast.tokens[who]) as client:
            for path in ("/v1/overview", "/v1/events", "/v1/jobs/overview"):
                answer = client.head(path)
                assert (answer.status_code, answer.content) == (expected, b"")
