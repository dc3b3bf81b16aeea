"""The dashboard in a headless Chromium, before a real master with 200 workers and 10,000 slots (no Spark).

First paint, and the map drawn: of a page that is opened anew, without and with files that the browser has kept. Frames:
their distances while jobs of 250 slots end and come all the time, on the page with the map. Without a peer: what has
no exact slots draws no map of them. Needs Chromium (``make test-browser`` says how to get it)."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

import httpx
from tests.browser import scenes
from tests.browser.chromium import ARGUMENTS, find, lacking
from tests.browser.fleet import TOKEN, LiveMaster

from _harness import Case, arguments, case, check, median, show
from slotwise.master import Master
from slotwise.model.ids import JobId

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

WORKERS, JOBS, EXECUTORS = 200, 40, 249
ROUNDS = 7
WATCH_S = 15.0
CHURN_S = 0.5

_PAINT = """() => new Promise((resolve) => {
  const done = (entry) => resolve(entry.startTime / 1000);
  const [found] = performance.getEntriesByName("first-contentful-paint");
  if (found) done(found);
  else new PerformanceObserver((list) => list.getEntriesByName("first-contentful-paint").forEach(done))
    .observe({ type: "paint", buffered: true });
})"""
_FRAMES = """(seconds) => new Promise((resolve) => {
  const gaps = [], blocked = [];
  new PerformanceObserver((list) => list.getEntries().forEach((entry) => blocked.push(entry.duration)))
    .observe({ type: "longtask" });
  const begin = performance.now();
  let before = begin, drawings = 0;
  const canvas = document.querySelector("canvas");
  new MutationObserver(() => { drawings += 1; }).observe(canvas, { attributeFilter: ["data-redrawn"] });
  const frame = (now) => {
    gaps.push(now - before);
    before = now;
    if (now - begin < seconds * 1000) requestAnimationFrame(frame);
    else resolve({ gaps: gaps.slice(1), blocked, drawings });
  };
  requestAnimationFrame(frame);
})"""


def main() -> None:
    options = arguments("The dashboard's first paint, and its frames while 10,000 slots come and go.").parse_args()
    reason = lacking()
    if reason is not None:
        raise SystemExit(reason)
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory(prefix="slotwise-dashboard-") as folder,
        LiveMaster(Path(folder), pace=0.1) as master,
        sync_playwright() as playwright,
    ):
        jobs = scenes.crowd(master, WORKERS, JOBS, EXECUTORS)
        browser = playwright.chromium.launch(executable_path=find(), args=list(ARGUMENTS))
        cases = [_answer(master), *_paint(browser, master), *_frames(browser, master, jobs)]
        browser.close()
    show(cases, options.json)
    raise SystemExit(check("dashboard", cases) if options.check else 0)


def _answer(master: LiveMaster) -> Case:
    """What a map costs the master, the connection included."""
    times = []
    with httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False) as client:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            client.get(f"{master.url}/v1/slots").raise_for_status()
            times.append(time.perf_counter() - began)
    return case("GET /v1/slots with 10,000 slots", "s", median(times))


def _context(browser: Browser, master: LiveMaster) -> BrowserContext:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.request.post(f"{master.url}/v1/session", data={"token": TOKEN})
    return context


def _paint(browser: Browser, master: LiveMaster) -> list[Case]:
    cold, warm, drawn = [], [], []
    for _ in range(ROUNDS):
        context = _context(browser, master)
        page = context.new_page()
        page.goto(f"{master.url}/#/slots", wait_until="commit")
        cold.append(page.evaluate(_PAINT))
        page.locator("canvas[data-slots]").wait_for()
        drawn.append(page.evaluate("performance.now() / 1000"))
        page.reload(wait_until="commit")
        warm.append(page.evaluate(_PAINT))
        context.close()
    return [
        case("first contentful paint, nothing kept by the browser", "s", median(cold)),
        case("first contentful paint, files kept by the browser", "s", median(warm)),
        case("map of 10,000 slots drawn, nothing kept", "s", median(drawn)),
    ]


def _frames(browser: Browser, master: LiveMaster, jobs: list[JobId]) -> list[Case]:
    context = _context(browser, master)
    page = context.new_page()
    page.goto(f"{master.url}/#/slots")
    page.locator("canvas[data-slots]").wait_for()
    page.locator("[data-connection=live]").wait_for()

    async def churn(inner: Master) -> None:
        """The oldest job ends, another takes its place."""
        for number, job in enumerate(jobs * 100):
            if inner.dispatcher.jobs[job].state.is_final:
                return
            await inner.cancel(job)
            await inner.submit(scenes.spec(f"next-{number}", executors=EXECUTORS, gib=1 + number % 6))
            await asyncio.sleep(CHURN_S)

    with master.meanwhile(churn):
        found = page.evaluate(_FRAMES, WATCH_S)
    gaps = sorted(gap / 1000 for gap in found["gaps"])
    print(f"{len(gaps)} frames, {found['drawings']} drawings of the map in {WATCH_S:g} s", file=sys.stderr)
    context.close()
    return [
        case("frame while slots come and go, median", "s", gaps[len(gaps) // 2]),
        case("frame while slots come and go, 95th percentile", "s", gaps[int(len(gaps) * 0.95)]),
        case("frame while slots come and go, 99th percentile", "s", gaps[int(len(gaps) * 0.99)]),
        case("frame while slots come and go, longest", "s", gaps[-1]),
        case("share of time in tasks over 50 ms", "%", 100 * sum(found["blocked"]) / 1000 / WATCH_S),
    ]


if __name__ == "__main__":
    main()
