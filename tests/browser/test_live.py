"""What changes, while somebody looks: sessions, events, lost connections, logs that follow, the map of slots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from slotwise.dispatcher.tokens import Role
from slotwise.model.ids import JobId, WorkerId
from slotwise.model.job import JobState
from slotwise.model.resources import GIB, ResourceProfile
from tests.browser import scenes
from tests.browser.conftest import Opener
from tests.browser.fleet import TOKEN, LiveMaster

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

LIVE, POLLING = "[data-connection=live]", "[data-connection=polling]"


def log_in(page: Page, token: str = TOKEN) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def running(master: LiveMaster, name: str = "steady") -> JobId:
    (job,) = master.submit(scenes.spec(name))
    scenes.state(master, job, JobState.RUNNING)
    return job


# ----------------------------------------------------------------------------------------------- sessions


def test_a_token_opens_a_session_that_no_script_can_read(
    master: LiveMaster, open_page: Opener, keep: Callable[[Page, str], None]
) -> None:
    page = open_page(master, "#/workers", login=None)
    keep(page, "login-light-1280")
    log_in(page, "wrong")
    page.get_by_text("The master does not know this token.").wait_for()
    log_in(page)
    # To where somebody wanted to go.
    page.get_by_role("heading", name="Workers", level=1).wait_for()
    stored = page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, history.state])")
    assert stored == '["",{},{},null]'
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("slotwise_session", True, "Strict")
    page.reload()
    page.get_by_role("heading", name="Workers", level=1).wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").wait_for()
    page.reload()
    page.get_by_label("Token").wait_for()
    assert master.call(lambda m: len(m.auth._sessions)) == 0


def test_a_link_with_a_code_logs_in_once_and_leaves_no_trace(master: LiveMaster, open_page: Opener) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    code = httpx.post(f"{master.url}/v1/session-codes", headers=headers, trust_env=False).json()["code"]
    page = open_page(master, f"login#code={code}", login=None)
    page.get_by_role("heading", name="Overview").wait_for()
    assert code not in page.url
    assert page.evaluate("history.length") == 2
    other = open_page(master, f"login#code={code}", login=None)
    other.get_by_text("This link does not work").wait_for()
    assert code not in other.url


def test_a_session_that_ends_leads_to_the_login_and_back(master: LiveMaster, open_page: Opener) -> None:
    master.add_workers(2)
    job = running(master)
    page = open_page(master, f"#/jobs/{job}/events")
    page.locator(LIVE).wait_for()
    page.get_by_text("executor-registered").first.wait_for()
    master.call(lambda m: m.auth._sessions.clear())
    master.submit(scenes.spec("something happens"))
    page.get_by_text("Your session has ended.").wait_for()
    log_in(page)
    page.get_by_text("executor-registered").first.wait_for()
    assert page.url.endswith(f"#/jobs/{job}/events")


def test_who_may_only_look_is_offered_nothing_else(master: LiveMaster, open_page: Opener) -> None:
    master.add_workers(2)
    job = running(master)
    viewer = master.call(lambda m: m.auth.tokens.create("vera", Role.VIEWER)[0])
    page = open_page(master, f"#/jobs/{job}", login=viewer)
    page.get_by_text("vera (viewer)").wait_for()
    page.get_by_role("heading", name="Executors").wait_for()
    assert page.get_by_role("button", name="Cancel").count() == 0
    assert page.get_by_role("button", name="Scale").count() == 0
    page.goto(f"{master.url}/#/workers/worker-000")
    page.get_by_text("Default slot").wait_for()
    assert page.get_by_role("button", name="Block").count() == 0


# ----------------------------------------------------------------------------------------------- events


def test_what_happens_is_shown_without_reloading_and_the_focus_stays(master: LiveMaster, open_page: Opener) -> None:
    master.add_workers(2)
    page = open_page(master, "#/jobs")
    page.locator(LIVE).wait_for()
    page.evaluate("window.kept = true")
    page.get_by_label("Filter by name or id").focus()
    job = running(master, "comes-by-itself")
    row = page.locator("tr", has_text="comes-by-itself")
    row.locator(".badge", has_text="running").wait_for()
    handle = row.element_handle()
    master.wait_for(lambda m: m.cancel(job))
    row.locator(".badge", has_text="canceled").wait_for()
    # The same row with another state, the same page, and nobody was thrown out of a field.
    assert handle is not None
    assert handle.evaluate("row => row.isConnected")
    assert page.evaluate("[window.kept, document.activeElement.type]") == [True, "search"]


def test_without_events_everything_is_asked_for_now_and_then(master: LiveMaster, open_page: Opener) -> None:
    master.add_workers(1)
    page = open_page(master, "#/jobs")
    page.route("**/v1/events", lambda route: route.abort())
    page.reload()
    page.locator(POLLING).wait_for()
    running(master, "found-by-asking")
    page.locator("tr", has_text="found-by-asking").wait_for()
    page.unroute("**/v1/events")
    page.locator(LIVE).wait_for()


def test_a_lost_master_is_said_and_a_new_one_is_found(
    master: LiveMaster, open_page: Opener, keep: Callable[[Page, str], None]
) -> None:
    master.add_workers(2)
    job = running(master, "outlives-its-master")
    page = open_page(master, f"#/jobs/{job}")
    page.locator(LIVE).wait_for()
    master.stop()
    page.get_by_text("Connection lost, trying again.").wait_for()
    # What was known last is still there.
    page.get_by_role("heading", name="outlives-its-master").wait_for()
    keep(page, "connection-lost-light-1280")
    master.start()
    # Sessions are in the memory of the master that was.
    page.get_by_text("Your session has ended.").wait_for()
    log_in(page)
    page.locator(LIVE).wait_for()
    page.get_by_role("heading", name="outlives-its-master").wait_for()
    assert page.get_by_text("Connection lost").count() == 0


def test_a_connection_that_comes_back_to_the_same_master_needs_no_login(master: LiveMaster, open_page: Opener) -> None:
    page = open_page(master, "#/jobs")
    page.locator(LIVE).wait_for()
    page.context.set_offline(True)
    # What is open stays open, as with a cable that was pulled: a call finds out.
    page.get_by_label("Filter by name or id").fill("x")
    page.get_by_text("Connection lost, trying again.").wait_for()
    page.context.set_offline(False)
    page.get_by_text("Connection lost").wait_for(state="detached")
    page.locator(LIVE).wait_for()


# ----------------------------------------------------------------------------------------------- logs


def test_a_log_follows_is_searched_paused_and_saved(master: LiveMaster, open_page: Opener, tmp_path: Path) -> None:
    master.add_workers(2)
    job = running(master, "talks")
    at = master.write_log(job, "driver-1.out", "one needle\ntwo <b>bold</b>\n")
    page = open_page(master, f"#/jobs/{job}/logs")
    log = page.get_by_role("log")
    page.get_by_text("two <b>bold</b>").wait_for()
    first = log.locator("div").first.element_handle()
    at = master.write_log(job, "driver-1.out", "three needle\n", at)
    page.get_by_text("three needle").wait_for()
    assert first is not None
    assert first.evaluate("block => block.isConnected && block.childNodes.length === 1")
    page.keyboard.press("/")
    page.keyboard.type("NEEDLE")
    page.get_by_text("2 found").wait_for()
    page.keyboard.press("Enter")
    page.get_by_text("1 of 2").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Paused.").wait_for()
    master.write_log(job, "driver-1.out", "four\n", at)
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("four").wait_for()
    assert log.inner_text().count("needle") == 2
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "driver-1.out"
    download.value.save_as(tmp_path / "saved")
    assert (tmp_path / "saved").read_text().splitlines()[-1] == "four"
    master.wait_for(lambda m: m.cancel(job))
    page.get_by_text("The log is complete").wait_for()


def test_a_log_without_end_takes_no_memory_without_end(master: LiveMaster, open_page: Opener) -> None:
    master.add_workers(1)
    job = running(master, "talks-a-lot")
    line = "x" * 99 + "\n"
    at = master.write_log(job, "driver-1.out", line * 30_000)
    page = open_page(master, f"#/jobs/{job}/logs")
    page.get_by_text("Following.").wait_for()
    for number in range(4):
        at = master.write_log(job, "driver-1.out", line * 10_000 + f"batch {number} is here\n", at)
        page.get_by_text(f"batch {number} is here").wait_for()
    size = page.get_by_role("log").evaluate("log => [log.textContent.length, log.childElementCount]")
    assert size[0] <= 2_100_000
    assert size[1] <= 70
    assert page.get_by_role("log").evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight < 30")


# ----------------------------------------------------------------------------------------------- the slot map


def test_the_map_shows_200_workers_and_draws_only_what_changed(
    browser: Browser, tmp_path: Path, open_page: Opener, keep: Callable[[Page, str], None]
) -> None:
    with LiveMaster(tmp_path) as master:
        jobs = scenes.crowd(master, workers=200, jobs=10, executors=59)
        page = open_page(master, "#/slots")
        canvas = page.locator("canvas[data-slots='600']")
        canvas.wait_for()
        assert canvas.get_attribute("data-workers") == "200"
        assert page.locator(".legend li").count() == 10
        assert page.evaluate(_COLOURS) >= 10
        keep(page, "slots-200-workers-light-1280")
        master.wait_for(lambda m: m.block(WorkerId("worker-007"), True))
        page.locator("canvas[data-redrawn='1']").wait_for()
        page.get_by_role("button", name="CPU").click()
        page.locator("canvas[data-redrawn='200']").wait_for()
        # By keyboard: what is chosen is read out, and Enter opens it.
        canvas.focus()
        page.keyboard.press("Home")
        said = page.locator(".slotmap [role=status]")
        first = said.inner_text()
        assert "on worker-000" in first
        page.keyboard.press("ArrowRight")
        assert said.inner_text() != first
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        page.locator(".job-title h1", has_text="job-").wait_for()
        assert any(job in page.url for job in jobs)


def test_the_map_tells_what_is_pointed_at_and_what_is_not_there_yet(master: LiveMaster, open_page: Opener) -> None:
    master.add_workers(1, ResourceProfile(4000, 8 * GIB))
    job = running(master, "pointed-at")
    # This worker takes slots and never answers for them.
    master.add_workers(1, ResourceProfile(4000, 8 * GIB), prefix="deaf-")
    master.call(lambda m: m._workers.pop(next(name for name in m._workers if "deaf" in name)))
    page = open_page(master, "#/slots")
    canvas = page.locator("canvas")
    page.locator("canvas[data-slots='3']").wait_for()
    (waiting,) = master.submit(scenes.spec("hangs", executors=2, min_executors=2))
    page.locator("canvas[data-slots='6']").wait_for()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 25)
    tip = page.locator(".slotmap-tip")
    tip.get_by_text("pointed-at").wait_for()
    assert job in tip.inner_text()
    canvas.focus()
    page.keyboard.press("End")
    said = page.locator(".slotmap [role=status]")
    assert said.inner_text().startswith("Free: ")
    page.keyboard.press("ArrowLeft")
    assert "pending: asked for, not confirmed yet" in said.inner_text()
    assert waiting in said.inner_text()


def test_a_finger_is_told_first_and_opens_with_a_second_tap(master: LiveMaster, open_page: Opener) -> None:
    master.add_workers(1)
    job = running(master, "tapped")
    page = open_page(master, "#/slots", viewport={"width": 375, "height": 760}, has_touch=True)
    page.locator("canvas[data-slots='3']").wait_for()
    page.locator("canvas").tap(position={"x": 6, "y": 25})
    page.locator(".slotmap-tip", has_text="tapped").wait_for()
    assert page.url.endswith("#/slots")
    page.locator("canvas").tap(position={"x": 6, "y": 25})
    page.get_by_role("heading", name="tapped").wait_for()
    assert page.url.endswith(f"#/jobs/{job}")


_COLOURS = """() => {
  const canvas = document.querySelector("canvas");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Map();
  for (let at = 0; at < data.length; at += 4) {
    const key = (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
    if (data[at + 3] === 255) seen.set(key, (seen.get(key) ?? 0) + 1);
  }
  return [...seen.values()].filter((pixels) => pixels > 200).length;
}"""
