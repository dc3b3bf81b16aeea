"""The dashboard's files, the codes that open it, and what the API has for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from slotwise import dashboard
from slotwise.cli.main import main
from slotwise.dispatcher.files import open_files
from slotwise.dispatcher.http.auth import CODE_S, Authenticator
from slotwise.dispatcher.tokens import Role, TokenStore
from slotwise.model.ids import JobId
from slotwise.protocol.codec import LogData
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from slotwise.simulation.world import World
from tests.service.served import TOKEN, Served, served
from tests.unit.worlds import WORKER, spec


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("dashboard")) as made:
        yield made


class Elements(HTMLParser):
    """The start tags of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


# ----------------------------------------------------------------------------------------------- its files


@pytest.mark.parametrize("path", ["/", "/login"])
def test_the_page_is_open_and_lets_nothing_run_but_its_own_files(service: Served, path: str) -> None:
    with service.client(None) as client:
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        elements = Elements(answer.text).found
        assert not any(name.startswith("on") or name == "style" for _, attributes in elements for name in attributes)
        assert all(attributes.get("src") for tag, attributes in elements if tag == "script")
        links = [attributes.get("src") or attributes.get("href") or "" for _, attributes in elements]
        files = [link for link in links if link.startswith("/static/")]
        assert len(files) > 20
        assert all(link in ("", "#main") or link in files for link in links)
        for link in files:
            assert client.get(link).status_code == 200, link


def test_files_are_kept_for_ever_under_the_hash_of_what_they_are(service: Served) -> None:
    site = dashboard.site()
    with service.client(None) as client:
        for path in site.files:
            answer = client.get(f"/static/{site.digest}/{path}")
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.content == site.files[path].data
            assert answer.headers["content-encoding"] == "gzip"
        plain = client.get(f"/static/{site.digest}/js/main.js", headers={"Accept-Encoding": "identity"})
        assert plain.content == site.files["js/main.js"].data
        tag = plain.headers["etag"]
        assert client.get("/", headers={"If-None-Match": tag}).status_code == 304
        for gone in (f"/static/{'0' * 16}/js/main.js", f"/static/{site.digest}/js/nothing.js", "/static/", "/favicon"):
            assert client.get(gone).status_code == 404
        for climbing in ("../__init__.py", "%2e%2e/__init__.py", "js/../../__init__.py", "/etc/passwd"):
            assert client.get(f"/static/{site.digest}/{climbing}").status_code == 404


def test_files_refer_to_no_other_host_and_never_make_markup_of_text(service: Served) -> None:
    for path, file in dashboard.site().files.items():
        text = file.data.decode()
        assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}, path
        made = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        assert not re.search(made, text), path
        for module in re.findall(r'from "([^"]+)"', text):
            assert module.startswith("."), f"{path} imports {module}"


# ----------------------------------------------------------------------------------------------- codes


def test_a_code_opens_one_session_for_whose_token_it_was_made(service: Served) -> None:
    token = service.token("ann", Role.VIEWER)
    with service.client(token) as client, service.client(None) as browser:
        made = client.post("/v1/session-codes")
        assert (made.status_code, made.json()["valid_s"]) == (201, 60)
        code = made.json()["code"]
        assert token not in code
        answer = browser.post("/v1/session", json={"code": code})
        assert answer.json() == {"name": "ann", "role": "viewer"}
        assert browser.get("/v1/session").json() == {"name": "ann", "role": "viewer"}
        # A session makes no codes, and a code works once.
        again = browser.post("/v1/session-codes", headers={"X-Slotwise": "dashboard"})
        assert (again.status_code, "not for a session" in again.json()["detail"]) == (403, True)
    with service.client(None) as other:
        refused = other.post("/v1/session", json={"code": code})
        assert (refused.status_code, "used before" in refused.json()["detail"]) == (401, True)
        assert other.get("/v1/session").status_code == 401


@pytest.mark.parametrize("body", [{}, {"code": "x", "token": TOKEN}, {"code": ""}, {"code": 1}, {"codes": "x"}])
def test_a_login_is_by_token_or_by_code(service: Served, body: dict[str, object]) -> None:
    with service.client(None) as client:
        answer = client.post("/v1/session", json=body)
        assert answer.status_code == 400
        assert "set-cookie" not in answer.headers


def test_a_code_is_too_old_after_a_minute_and_when_its_token_is_revoked(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    now = [1000.0]
    tokens = TokenStore(open_files(tmp_path_factory.mktemp("codes")), TOKEN)
    auth = Authenticator(tokens, lambda: now[0])
    token, record = tokens.create("bob", Role.ADMIN)
    old, fresh, revoked = (auth.open_code(record) for _ in range(3))
    now[0] += CODE_S - 0.1
    assert auth.redeem(fresh) is not None
    now[0] += 0.1
    assert auth.redeem(old) is None
    revoked = auth.open_code(record)
    auth.revoke("bob")
    assert auth.redeem(revoked) is None
    # However many are made, they are not kept for ever.
    several = [auth.open_code(tokens.create("eve", Role.VIEWER)[1])]
    eve = next(known for known in tokens.records() if known.name == "eve")
    several += [auth.open_code(eve) for _ in range(1_000)]
    assert auth.redeem(several[0]) is None
    assert auth.redeem(several[-1]) is not None
    assert token


# ----------------------------------------------------------------------------------------------- slotwise dashboard


@pytest.fixture
def command(service: Served, tmp_path: Path) -> list[str]:
    (tmp_path / "token").write_text(TOKEN)
    return ["dashboard", "--master", service.url, "--token-file", str(tmp_path / "token")]


def test_the_command_prints_where_it_is(
    service: Served, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda url: pytest.fail(f"opened {url}"))
    assert run_command(command) == 0
    assert capsys.readouterr().out == f"{service.url}/\n"
    assert run_command([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"url": f"{service.url}/"}


def test_the_command_opens_a_browser_that_is_logged_in_without_the_token(
    service: Served, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def opens(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", opens)
    assert run_command([*command, "--open"]) == 0
    ((page, code),) = [url.split("#code=") for url in opened]
    assert page == f"{service.url}/login"
    assert TOKEN not in opened[0]
    # What is printed is read by others and kept in logs: there is no code in it.
    assert code not in capsys.readouterr().out
    with service.client(None) as client:
        assert client.post("/v1/session", json={"code": code}).json()["name"] == "cluster"


def test_the_command_says_what_to_do_where_there_is_no_browser_or_no_master(
    service: Served, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    assert run_command([*command, "--open"]) == 1
    assert "no browser can be opened here" in capsys.readouterr().err
    command[command.index(service.url)] = "http://127.0.0.1:1"
    assert run_command(command) == 1
    assert "no master answers at http://127.0.0.1:1" in capsys.readouterr().err


def run_command(argv: list[str]) -> int:
    """The exit code of ``slotwise …``."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    return int(ended.value.code or 0)


# ----------------------------------------------------------------------------------------------- for the pages


def test_the_map_of_slots_says_the_same_as_the_workers_in_fewer_bytes(tmp_path_factory: pytest.TempPathFactory) -> None:
    world = World()
    for _ in range(3):
        world.add_worker(WORKER)
    jobs = [world.submit(spec(name=f"job {number}", program="/served/long.py")) for number in range(2)]
    slots = world.rm.slots.workers.values()
    world.run_until(lambda: sum(len(entry.slots) for entry in slots) == 6, 60)
    with served(tmp_path_factory.mktemp("map")) as service:
        service.show(world)
        with service.client() as client:
            found, workers = client.get("/v1/slots").json(), client.get("/v1/taskmanagers").json()["taskmanagers"]
    assert [worker["id"] for worker in found["workers"]] == [worker["id"] for worker in workers]
    assert {job["id"] for job in found["jobs"]} == set(jobs)
    assert sum(len(worker["slots"]) for worker in found["workers"]) == 6
    for mine, other in zip(found["workers"], workers, strict=True):
        drawn = [
            (name, found["jobs"][job]["id"], found["profiles"][profile]["memory_bytes"], pending)
            for name, job, profile, pending in mine["slots"]
        ]
        assert drawn == [
            (slot["allocation"], slot["jobId"], slot["resource"]["memory_bytes"], slot["pending"])
            for slot in other["allocatedSlots"]
        ]
        assert mine["free"]["memory_bytes"] == other["freeResource"]["memory_bytes"]
        assert mine["total"]["cpu_milli"] == other["totalResource"]["cpu_milli"]


def test_the_end_of_a_log_is_served_with_where_it_begins(service: Served) -> None:
    job = service.submit(name="talks")
    service.call(lambda: service.master.logs.write(LogData(JobId(job), "driver-1.out", 0, b"0123456789")))
    with service.client() as client:

        def get(**query: str) -> tuple[str, str]:
            answer: httpx.Response = client.get(f"/v1/jobs/{job}/logs/driver-1.out", params=query)
            return answer.headers["x-log-offset"], answer.text

        assert get(tail="4") == ("6", "6789")
        assert get(tail="400") == ("0", "0123456789")
        assert get(tail="0") == ("10", "")
        assert get(offset="8") == ("8", "89")
        assert client.get(f"/v1/jobs/{job}/logs/driver-1.out", params={"tail": "-1"}).status_code == 400


def test_the_limits_of_the_cluster_are_shown(tmp_path_factory: pytest.TempPathFactory) -> None:
    sizing = Sizing(WorkerShape(WORKER, WORKER), max_total=WORKER * 4, min_total=WORKER, max_workers=3)
    world = World(rm_config=ResourceManagerConfig(sizing=sizing))
    with served(tmp_path_factory.mktemp("limits")) as service, service.client() as client:
        unbounded = client.get("/v1/resources").json()
        assert [unbounded[name] for name in ("minimum", "maximum", "max_workers")] == [None, None, None]
        service.show(world)
        found = client.get("/v1/resources").json()
    assert (found["minimum"]["memory_bytes"], found["max_workers"]) == (WORKER.memory_bytes, 3)
    assert found["maximum"]["cpu_milli"] == 4 * WORKER.cpu_milli


def test_jobs_are_found_by_a_part_of_their_id(service: Served) -> None:
    job = service.submit(name="findable")
    with service.client() as client:
        found = client.get("/v1/jobs/overview", params={"name": job[4:]}).json()["jobs"]
    assert [one["jid"] for one in found] == [job]
