"""Spark's pages through the master's port, from a stand-in for a driver's UI."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from slotwise.jobmaster.slot_pool import HeldSlot
from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.model.process import DriverReport
from slotwise.model.resources import GIB, ResourceProfile
from tests.service.served import TOKEN, Served, served, wait_for

SLOT = AllocationId("slot-1")


@dataclass
class Ui:
    """A driver's UI: notes what it is asked. ``where``: what it redirects to."""

    port: int = 0
    asked: list[Request] = field(default_factory=list)
    where: str = "/jobs/"

    async def page(self, request: Request) -> Response:
        self.asked.append(request)
        base = request.headers.get("x-forwarded-context", "")
        text = f'<a href="{base}/stages/">stages</a> {request.url.path}?{request.url.query}'
        return Response(text, headers={"Set-Cookie": "own=1", "ETag": '"1"'}, media_type="text/html;charset=utf-8")

    async def large(self, request: Request) -> Response:
        async def pieces() -> Any:
            for _ in range(64):
                yield b"x" * 65536

        return StreamingResponse(pieces(), media_type="application/octet-stream")

    async def away(self, request: Request) -> Response:
        self.asked.append(request)
        return RedirectResponse(self.where, 302)


@pytest.fixture
def ui() -> Iterator[Ui]:
    made = Ui()
    routes = [
        Route("/large", made.large),
        Route("/away", made.away),
        Route("/{path:path}", made.page, methods=["GET", "POST"]),
    ]
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    made.port = bound.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])), daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield made
    server.should_exit = True
    thread.join(20)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        yield made


def job_with_ui(service: Served, url: str, **changes: Any) -> JobId:
    """A job whose driver runs in a slot on this machine and says that its UI is at ``url``."""
    job = service.submit()

    def act() -> None:
        machine = service.master.job_masters[job]
        held = HeldSlot(SLOT, WorkerId("w"), "127.0.0.1", ResourceProfile(1000, GIB), None)
        machine.pool.slots[SLOT] = held
        machine.driver.slot = SLOT
        machine.executors.report = msgspec.structs.replace(DriverReport(1, "app-1", ui_url=url), **changes)

    service.call(act)
    return job


def test_pages_are_passed_on_with_links_below_the_proxy(service: Served, ui: Ui) -> None:
    job = job_with_ui(service, f"http://driver.example:{ui.port}")
    base = f"/v1/jobs/{job}/spark-ui"
    with service.client() as client:
        page = client.get(f"{base}/stages/stage?id=1&x=%2Fy")
        assert page.status_code == 200
        assert page.text == f'<a href="{base}/stages/">stages</a> /stages/stage?id=1&x=%2Fy'
        assert page.headers["content-type"] == "text/html;charset=utf-8"
        assert page.headers["etag"] == '"1"'
        assert client.get(f"{base}/").status_code == 200
        root = client.get(base)
        assert (root.status_code, root.headers["location"]) == (307, f"{base}/")
        assert client.get(f"{base}/a%20b").text.endswith("/a b?")
        assert len(client.get(f"{base}/large").content) == 64 * 65536
        assert client.head(f"{base}/x").content == b""


def test_neither_tokens_nor_cookies_cross_the_proxy(service: Served, ui: Ui) -> None:
    job = job_with_ui(service, f"http://127.0.0.1:{ui.port}")
    with service.client(None) as browser:
        browser.post("/v1/session", json={"token": TOKEN})
        for _ in range(2):
            page = browser.get(
                f"/v1/jobs/{job}/spark-ui/", headers={"X-Secret": "s", "Referer": "r", "If-None-Match": "e"}
            )
            assert "set-cookie" not in page.headers
    for asked in ui.asked:
        assert not {"authorization", "cookie", "x-secret", "referer", "x-slotwise", "origin"} & set(asked.headers)
        assert asked.headers["if-none-match"] == "e"
        assert asked.headers["x-forwarded-context"] == f"/v1/jobs/{job}/spark-ui"


def test_it_only_reads(service: Served, ui: Ui) -> None:
    job = job_with_ui(service, f"http://127.0.0.1:{ui.port}")
    with service.client() as client:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert client.request(method, f"/v1/jobs/{job}/spark-ui/jobs/job/kill/").status_code == 405
    assert ui.asked == []


def test_the_pages_are_confined_to_their_own_paths(service: Served, ui: Ui) -> None:
    job = job_with_ui(service, f"http://127.0.0.1:{ui.port}")
    with service.client() as client:
        policy = client.get(f"/v1/jobs/{job}/spark-ui/").headers["content-security-policy"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    own = f"{service.url}/v1/jobs/{job}/spark-ui/"
    assert rules["connect-src"] == rules["form-action"] == own
    assert rules["default-src"].startswith(f"{own} ")
    assert "'self'" not in policy
    assert "allow-popups" not in rules["sandbox"]
    assert "allow-top-navigation" not in rules["sandbox"]
    for name in ("frame-src", "worker-src", "object-src", "base-uri", "frame-ancestors"):
        assert rules[name] == "'none'"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("/jobs/", "BASE/jobs/"),
        ("OWN/jobs/?a=1", "BASE/jobs/?a=1"),
        ("OWNBASE/jobs/", "BASE/jobs/"),
        ("BASE/jobs/", "BASE/jobs/"),
        ("jobs/", "jobs/"),
    ],
)
def test_redirects_stay_below_the_proxy(service: Served, ui: Ui, where: str, expected: str) -> None:
    job = job_with_ui(service, f"http://127.0.0.1:{ui.port}")
    base = f"/v1/jobs/{job}/spark-ui"
    ui.where = where.replace("OWN", f"http://127.0.0.1:{ui.port}").replace("BASE", base)
    with service.client() as client:
        answer = client.get(f"{base}/away")
    assert answer.status_code == 302
    assert answer.headers["location"] == expected.replace("BASE", base)


@pytest.mark.parametrize(
    "where",
    [
        *("https://evil.example/", "//evil.example/x", "javascript:alert(1)", "/../../../v1/tokens"),
        *("../../../../v1/tokens", "BASE/../../../tokens", "/%2e%2e/%2e%2e/tokens", "\\\\evil.example"),
    ],
)
def test_redirects_to_elsewhere_are_refused(service: Served, ui: Ui, where: str) -> None:
    job = job_with_ui(service, f"http://127.0.0.1:{ui.port}")
    base = f"/v1/jobs/{job}/spark-ui"
    ui.where = where.replace("BASE", base)
    with service.client() as client:
        answer = client.get(f"{base}/away")
        assert answer.status_code == 502
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_ui_that_is_dead_or_was_never_there(service: Served, ui: Ui) -> None:
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    dead = job_with_ui(service, f"http://127.0.0.1:{free.getsockname()[1]}")
    free.close()
    none = service.submit()
    over = job_with_ui(service, f"http://127.0.0.1:{ui.port}", ended=True)
    odd = [job_with_ui(service, url) for url in ("", "nonsense", "http://x:99999", "http://x:y/", "file:///etc/passwd")]
    with service.client() as client:

        def get(job: str) -> httpx.Response:
            return client.get(f"/v1/jobs/{job}/spark-ui/")

        answer = get(dead)
        assert answer.status_code == 502
        assert "does not answer" in answer.json()["detail"]
        for job in (none, over, "job-none", *odd):
            assert get(job).status_code == 404, job
            assert client.get(f"/v1/jobs/{job}/spark-ui").status_code == 404


def test_only_the_host_of_the_drivers_slot_is_dialled(service: Served, ui: Ui) -> None:
    # A program may say what it likes of its UI: the port is taken, the host is not.
    job = job_with_ui(service, f"http://169.254.169.254:{ui.port}/latest")
    with service.client() as client:
        assert client.get(f"/v1/jobs/{job}/spark-ui/x").text.endswith("/x?")
    assert len(ui.asked) == 1
