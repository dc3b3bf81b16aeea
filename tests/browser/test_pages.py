"""Every page, on a small cluster: it says what there is, in words, on a phone and in the dark; names stay text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from slotwise.model.job import JobState
from tests.browser.conftest import Opener, Town
from tests.browser.fleet import LiveMaster
from tests.browser.scenes import EVIL

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

PAGES: dict[str, tuple[str, str]] = {
    "overview": ("#/", "Ended lately"),
    "jobs": ("#/jobs", "7 jobs"),
    "slots": ("#/slots", "Slot map: 4 workers"),
    "workers": ("#/workers", "4 workers"),
    "worker": ("#/workers/worker-000", "driver-1"),
    "configuration": ("#/configuration", "interpreter"),
    "job-running": ("running", "Changes of size"),
    "job-waiting": ("waiting", "Why it is waiting"),
    "job-failed": ("failed", "The job has failed"),
    "job-evil": ("evil", "onerror"),
    "job-regions": ("pipeline/regions", "6 regions"),
    "job-slots": ("running/slots", "Held: 5 slots"),
    "job-stages": ("running/stages", "No stage is active now"),
    "job-logs": ("finished/logs", "The log is complete"),
    "job-events": ("running/events", "executor-registered"),
    "job-configuration": ("running/configuration", "/programs/endless.py"),
}
SCREENS: dict[str, dict[str, Any]] = {
    "light-1280": {"color_scheme": "light"},
    "dark-1280": {"color_scheme": "dark"},
    "light-375": {"color_scheme": "light", "viewport": {"width": 375, "height": 760}, "has_touch": True},
    "dark-375": {"color_scheme": "dark", "viewport": {"width": 375, "height": 760}, "has_touch": True},
}


def visit(page: Page, town: Town, name: str) -> None:
    address, text = PAGES[name]
    if not address.startswith("#"):
        job, *more = address.split("/")
        address = town.address(job, *more)
    page.goto(f"{town.master.url}/{address}")
    page.locator("main", has_text=text).wait_for()
    assert page.locator("[role=alert]:visible").count() == 0, page.locator("main").inner_text()


# Each kind of screen once; the other two, which people look at, take as long again.
@pytest.mark.parametrize(
    "screen",
    ["light-1280", "dark-375", *(pytest.param(name, marks=pytest.mark.long) for name in ("dark-1280", "light-375"))],
)
def test_every_page_says_what_there_is_and_is_no_wider_than_its_screen(
    town: Town, open_page: Opener, keep: Callable[[Page, str], None], screen: str
) -> None:
    page = open_page(town.master, **SCREENS[screen])
    for name in PAGES:
        visit(page, town, name)
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over == 0, f"{name} is {over} px too wide for {screen}"
        keep(page, f"{name}-{screen}")
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(town: Town, open_page: Opener, scheme: str) -> None:
    page = open_page(town.master, color_scheme=scheme)
    for name in ("overview", "job-waiting", "job-failed"):
        visit(page, town, name)
        worst = page.evaluate(_CONTRAST)
        # WCAG AA for text of this size.
        assert worst["ratio"] >= 4.5, worst


def test_a_job_that_waits_says_why_and_what_helps(town: Town, open_page: Opener) -> None:
    page = open_page(town.master, town.address("waiting"))
    said = page.locator("#explanation").inner_text()
    assert "Why it is waiting" in said
    assert re.search(r"\d × 1 CPU, 24 GiB missing: 4 worker\(s\) registered, none with room for it", said)
    assert "What helps: start another worker" in said


def test_a_job_that_has_failed_says_what_it_failed_of_and_keeps_its_output(town: Town, open_page: Opener) -> None:
    page = open_page(town.master, town.address("failed"))
    page.locator(".callout.bad", has_text="the program ended with code 3").wait_for()
    page.get_by_role("link", name="Logs").click()
    page.locator(".log", has_text='ValueError: no column "x"').wait_for()


def test_names_of_jobs_stay_text_wherever_they_are(town: Town, open_page: Opener) -> None:
    page = open_page(town.master, town.address("evil"))
    page.get_by_role("heading", name=EVIL, exact=True).wait_for()
    for address in ("#/", "#/jobs", "#/slots"):
        page.goto(f"{town.master.url}/{address}")
        page.get_by_role("link", name=EVIL).first.wait_for()
    assert page.evaluate("[window.hacked, document.querySelectorAll('main img').length]") == [None, 0]


def test_the_graph_of_a_pipeline_has_its_regions_in_layers(town: Town, open_page: Opener) -> None:
    page = open_page(town.master, town.address("pipeline", "regions"))
    page.locator(".node").first.wait_for()
    places = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.node')].map(node =>"
        " [node.querySelector('.node-name').textContent, node.getCTM().e / node.getCTM().a]))"
    )
    assert places["raw_flights"] < places["flights"] < places["delays"]
    assert places["airlines"] < places["delays"]
    assert page.locator(".edge").count() == 5
    assert page.locator(".node.ok").count() == 6


def test_a_page_that_is_not_there_says_so(town: Town, open_page: Opener) -> None:
    page = open_page(town.master, "#/jobs/job-nobody")
    page.get_by_role("alert").filter(has_text="there is no job job-nobody").wait_for()
    page.goto(f"{town.master.url}/#/nowhere")
    page.get_by_role("heading", name="There is no such page").wait_for()


def test_an_empty_cluster_says_what_to_do(master: LiveMaster, open_page: Opener) -> None:
    page = open_page(master)
    page.get_by_text("No worker is registered.").first.wait_for()
    page.get_by_text("slotwise submit job.py").wait_for()
    page.goto(f"{master.url}/#/workers")
    page.get_by_text("slotwise worker --master URL").wait_for()


def test_the_list_of_jobs_is_filtered_by_state_and_text_and_shown_in_parts(town: Town, open_page: Opener) -> None:
    page = open_page(town.master, "#/jobs")
    page.get_by_role("heading", name="7 jobs").wait_for()
    page.get_by_label("Filter by state").select_option("FAILED")
    page.get_by_role("heading", name="1 job", exact=True).wait_for()
    assert page.locator("tbody a").inner_text() == "clean-up"
    page.get_by_label("Filter by state").select_option("")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("FLIGHTS")
    page.get_by_role("heading", name="2 jobs").wait_for()
    page.reload()
    # The filter is in the address.
    page.get_by_role("heading", name="2 jobs").wait_for()
    page.get_by_label("Filter by name or id").fill(town.jobs["waiting"])
    page.get_by_role("link", name="too-much").wait_for()
    page.goto(f"{town.master.url}/#/jobs?q=nothing+like+this")
    page.get_by_text("No job fits.").wait_for()


def test_keys_go_everywhere(town: Town, open_page: Opener) -> None:
    page = open_page(town.master)
    page.get_by_role("heading", name="Overview").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for key, heading in (("j", "Jobs"), ("w", "Workers"), ("s", "Slots"), ("c", "Configuration"), ("o", "Overview")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.get_by_role("heading", name=heading, exact=True, level=1).wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")


def test_times_are_local_with_utc_behind_them(town: Town, open_page: Opener) -> None:
    page = open_page(town.master, town.address("running"))
    shown = page.locator(".job-title time")
    shown.wait_for()
    utc, local = shown.get_attribute("title") or "", shown.inner_text()
    assert utc.endswith(" UTC")
    assert (int(local[-8:-6]) - int(utc[11:13])) % 24 in (1, 2)


def test_a_job_and_a_worker_can_be_told_what_to_do(master: LiveMaster, open_page: Opener) -> None:
    from tests.browser import scenes

    master.add_workers(2)
    (job,) = master.submit(scenes.spec("to-change", executors=2))
    scenes.state(master, job, JobState.RUNNING)
    page = open_page(master, f"#/jobs/{job}")
    page.get_by_label("At least").fill("9")
    page.get_by_label("at most").fill("3")
    page.get_by_role("button", name="Scale").click()
    page.get_by_text("At least cannot be more than at most.").wait_for()
    page.get_by_label("At least").fill("1")
    page.get_by_role("button", name="Scale").click()
    page.get_by_text("3 of 3").first.wait_for()
    page.goto(f"{master.url}/#/workers/worker-000")
    page.get_by_role("button", name="Block").click()
    page.get_by_role("button", name="Block it").click()
    page.locator(".badge", has_text="blocked").wait_for()
    page.goto(f"{master.url}/#/jobs/{job}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Leave it running").click()
    assert master.call(lambda m: m.dispatcher.jobs[job].state) is JobState.RUNNING
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("heading", name="The job was cancelled").wait_for()


# The least contrast of any text with what is painted behind it.
_CONTRAST = """() => {
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  let worst = { ratio: 100 };
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text || !element.checkVisibility() || element.closest("svg, .sr, .skip, noscript, :disabled")) continue;
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst.ratio) worst = { ratio, text: element.textContent.slice(0, 60), cls: element.className };
  }
  return worst;
}"""
