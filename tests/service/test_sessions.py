"""Tokens and the browser's session: made, used, misused, revoked; what is kept and what is written down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotwise.dispatcher import audit as audit_module
from slotwise.dispatcher.files import LocalFiles
from slotwise.dispatcher.http.auth import SESSION_S
from slotwise.dispatcher.tokens import Role, TokenStore
from slotwise.master import Master, MasterOptions
from slotwise.model.errors import StoreError
from tests.service.served import TOKEN, Served, served

DASHBOARD = {"X-Slotwise": "dashboard"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        yield made


def audit(service: Served) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (service.master.options.directory / "audit.jsonl").read_text().splitlines()]


def log_in(browser: httpx.Client, token: str = TOKEN) -> httpx.Response:
    return browser.post("/v1/session", json={"token": token})


def test_a_login_gives_a_cookie_that_no_script_reads_and_no_other_site_sends(service: Served) -> None:
    token = service.token("ann", Role.SUBMITTER)
    with service.client(None) as browser:
        answer = log_in(browser, token)
        assert answer.json() == {"name": "ann", "role": "submitter"}
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "secure" not in cookie
        assert token not in answer.text + cookie
        assert browser.get("/v1/session").json() == {"name": "ann", "role": "submitter"}
        assert browser.get("/v1/jobs").status_code == 200
        assert browser.get("/v1/tokens").status_code == 403
        assert browser.delete("/v1/session", headers=DASHBOARD).status_code == 200
        assert browser.get("/v1/session").status_code == 401


def test_wrong_and_workers_tokens_open_no_session(service: Served) -> None:
    for token in ("wrong", service.token("rack", Role.JOIN)):
        with service.client(None) as browser:
            assert log_in(browser, token).status_code == 401
            assert not browser.cookies
    with service.client(None) as browser:
        assert browser.post("/v1/session", json={}).status_code == 400
        assert browser.post("/v1/session", json={"token": TOKEN, "more": 1}).status_code == 400
        assert browser.post("/v1/session", data={"token": TOKEN}).status_code == 415
        assert browser.post("/v1/session", json={"token": TOKEN}, headers={"Origin": "https://evil"}).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"X-Slotwise": "other"}, 403),
        (DASHBOARD, 202),
        ({**DASHBOARD, "Origin": "OWN"}, 202),
        ({**DASHBOARD, "Origin": "https://evil.example"}, 403),
        ({**DASHBOARD, "Origin": "null"}, 403),
        ({"Origin": "OWN"}, 403),
    ],
)
def test_a_page_of_another_site_changes_nothing(service: Served, headers: dict[str, str], status: int) -> None:
    job = service.submit()
    own = {key: service.url if value == "OWN" else value for key, value in headers.items()}
    with service.client(None) as browser:
        log_in(browser)
        assert browser.patch(f"/v1/jobs/{job}", headers=own).status_code == status
        # Reading needs no more than the cookie, which other sites cannot send.
        assert browser.get(f"/v1/jobs/{job}").status_code == 200
    assert service.call(lambda: service.master.dispatcher.jobs[job].cancelling) is (status == 202)


def test_a_token_in_the_header_goes_before_the_cookie_and_needs_no_more(service: Served) -> None:
    with service.client(None) as browser:
        log_in(browser)
        wrong = browser.get("/v1/jobs", headers={"Authorization": "Bearer wrong"})
        assert wrong.status_code == 401
        right = browser.post(
            "/v1/tokens", json={"name": "n", "role": "viewer"}, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        assert right.status_code == 201


def test_a_session_ends_with_its_time_and_with_its_token(service: Served) -> None:
    token = service.token("ann", Role.VIEWER)
    with service.client(None) as browser, service.client() as admin:
        log_in(browser, token)
        auth = service.master.auth
        clock = auth._clock
        auth._clock = lambda: clock() + SESSION_S + 1
        assert browser.get("/v1/session").status_code == 401
        auth._clock = clock
        log_in(browser, token)
        assert browser.get("/v1/session").status_code == 200
        admin.delete("/v1/tokens/ann")
        assert browser.get("/v1/session").status_code == 401
        assert log_in(browser, token).status_code == 401
        # One of the same name is another.
        admin.post("/v1/tokens", json={"name": "ann", "role": "admin"})
        assert browser.get("/v1/session").status_code == 401


def test_a_token_is_shown_once_and_kept_as_a_digest_across_masters(tmp_path: Path) -> None:
    with served(tmp_path) as service, service.client() as admin:
        made = admin.post("/v1/tokens", json={"name": "ann", "role": "submitter"}).json()
        token = made.pop("token")
        assert len(token) >= 43
        assert admin.get("/v1/tokens").json() == {"tokens": [made]}
        assert admin.post("/v1/tokens", json={"name": "ann", "role": "viewer"}).status_code == 409
    kept = tmp_path / "tokens.json"
    assert kept.stat().st_mode & 0o077 == 0
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert token.encode() not in everything
    assert TOKEN.encode() not in everything
    assert hashlib.sha256(token.encode()).hexdigest() in kept.read_text()
    with served(tmp_path) as service, service.client(token) as ann, service.client() as admin:
        assert ann.get("/v1/session").json() == {"name": "ann", "role": "submitter"}
        assert admin.delete("/v1/tokens/ann").json() == made
        assert admin.delete("/v1/tokens/ann").status_code == 404
        assert ann.get("/v1/session").status_code == 401
    with served(tmp_path) as service, service.client(token) as ann:
        assert ann.get("/v1/session").status_code == 401


@pytest.mark.parametrize("name", ["", "cluster", "a b", "x" * 65, "../x", "-x", "a\nb", "<b>", "é"])
def test_names_that_cannot_be(service: Served, name: str) -> None:
    with service.client() as admin:
        answer = admin.post("/v1/tokens", json={"name": name, "role": "viewer"})
    assert answer.status_code in (400, 409)
    assert answer.json()["detail"]


def test_the_clusters_own_token_stays(service: Served) -> None:
    with service.client() as admin:
        assert admin.delete("/v1/tokens/cluster").status_code == 409
        assert admin.get("/v1/session").json() == {"name": "cluster", "role": "admin"}


def test_a_token_that_cannot_be_kept_is_not_made(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    token = service.token("ann", Role.VIEWER)

    def full(*_: object) -> None:
        raise StoreError("cannot write tokens.json: No space left on device")

    monkeypatch.setattr(service.master.auth.tokens._files, "write", full)
    with service.client() as admin, service.client(token) as ann:
        assert admin.post("/v1/tokens", json={"name": "bob", "role": "viewer"}).status_code == 503
        assert admin.delete("/v1/tokens/ann").status_code == 503
        assert ann.get("/v1/session").status_code == 200
        assert [one["name"] for one in admin.get("/v1/tokens").json()["tokens"]] == ["ann"]


@pytest.mark.parametrize(
    "text", ["", "{}", "nonsense", '{"format":9,"tokens":[]}', '{"format":1,"tokens":[{"name":"x"}]}']
)
def test_a_damaged_file_of_tokens_ends_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens.json").write_text(text)
    with pytest.raises(StoreError, match=r"tokens\.json"):
        TokenStore(LocalFiles(tmp_path), TOKEN)

    async def start() -> None:
        await Master(MasterOptions(directory=tmp_path, token=TOKEN)).start()

    import asyncio

    with pytest.raises(StoreError):
        asyncio.run(start())


# ----------------------------------------------------------------------------------------------- what is written down


def test_every_change_and_every_refusal_is_written_down_without_secrets(service: Served) -> None:
    viewer = service.token("ann", Role.VIEWER)
    job = service.submit()
    with service.client() as admin, service.client(viewer) as ann, service.client(None) as browser:
        admin.get("/v1/jobs")
        admin.patch(f"/v1/jobs/{job}")
        ann.patch(f"/v1/jobs/{job}")
        ann.get("/v1/tokens")
        admin.patch("/v1/jobs/none")
        made = admin.post("/v1/tokens", json={"name": "bob", "role": "admin"}).json()["token"]
        log_in(browser, made)
        browser.post("/v1/jobs", json={})
        browser.get("/v1/jobs", headers={"Authorization": "Bearer stolen"})
    lines = audit(service)
    assert [(line["who"], line["call"], line["object"], line["result"], line["status"]) for line in lines] == [
        ("cluster", "PATCH /v1/jobs/{job}", f"/v1/jobs/{job}", "ok", 202),
        ("ann", "PATCH /v1/jobs/{job}", f"/v1/jobs/{job}", "refused", 403),
        ("ann", "GET /v1/tokens", "/v1/tokens", "refused", 403),
        ("cluster", "PATCH /v1/jobs/{job}", "/v1/jobs/none", "failed", 404),
        ("cluster", "POST /v1/tokens", "/v1/tokens", "ok", 201),
        ("bob", "POST /v1/session", "/v1/session", "ok", 200),
        ("bob", "POST /v1/jobs", "/v1/jobs", "refused", 403),
        ("anonymous", "GET /v1/jobs", "/v1/jobs", "refused", 401),
    ]
    assert lines[6]["via"] == "session"
    assert all(line["time"] and line["peer"] == "127.0.0.1" for line in lines)
    path = service.master.options.directory / "audit.jsonl"
    assert path.stat().st_mode & 0o077 == 0
    text = path.read_text()
    assert not any(secret in text for secret in (TOKEN, viewer, made, "stolen"))


def test_strangers_cannot_fill_the_disk(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(audit_module, "monotonic", lambda: now[0])
    with service.client(None) as stranger:
        for _ in range(20):
            stranger.get("/v1/jobs")
        now[0] += 2
        stranger.get("/v1/jobs")
    assert [line.get("repeated", 0) for line in audit(service)] == [0, 19]


def test_the_audit_log_is_turned_over_and_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_MAX_BYTES", 2000)
    log = audit_module.AuditLog(tmp_path)

    def add(number: int) -> None:
        log.add(who=f"n-{number}", role="admin", via="token", peer="p", call="c", path="/", status=200)

    for number in range(300):
        add(number)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 10
    assert all(path.stat().st_size < 2500 for path in files)
    newest = (tmp_path / "audit.jsonl.1").read_text() + (
        (tmp_path / "audit.jsonl").read_text() if (tmp_path / "audit.jsonl").exists() else ""
    )
    assert '"n-299"' in newest
    gone = audit_module.AuditLog(tmp_path / "nowhere")
    gone.add(who="x", role="admin", via="token", peer="p", call="c", path="/", status=200)
