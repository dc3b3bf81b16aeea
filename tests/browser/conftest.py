"""A browser for all tests here, and a page that must have said nothing of errors in the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from slotwise.model.ids import JobId
from tests.browser import scenes
from tests.browser.chromium import ARGUMENTS, find, lacking
from tests.browser.fleet import TOKEN, LiveMaster

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Response

SCREENSHOTS = Path(__file__).parents[2] / "artifacts" / "screenshots"
Opener = Callable[..., "Page"]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A headless Chromium; without one the tests are skipped with the reason."""
    reason = lacking()
    if reason is not None:
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    # It ends with this package: while it lives, no other test of this process can run an event loop.
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=find(), args=list(ARGUMENTS))
        yield found
        found.close()


class Town:
    """A small cluster that several tests look at, and its jobs by what they are."""

    def __init__(self, master: LiveMaster, jobs: dict[str, JobId]) -> None:
        self.master = master
        self.jobs = jobs

    def address(self, job: str, *more: str) -> str:
        """Of the page of a job."""
        return "#/" + "/".join(("jobs", self.jobs[job], *more))


@pytest.fixture(scope="package")
def town(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Town]:
    """For tests that only look."""
    with LiveMaster(tmp_path_factory.mktemp("town")) as master:
        yield Town(master, scenes.furnish(master))


@pytest.fixture
def master(tmp_path: Path, browser: Browser) -> Iterator[LiveMaster]:
    """An empty one of the test's own."""
    with LiveMaster(tmp_path) as made:
        yield made


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Opener]:
    """Opens a page of a master, logged in; in the end nothing may have gone wrong in any of them."""
    pages: list[tuple[Page, list[str]]] = []

    def open_it(master: LiveMaster, address: str = "#/", *, login: str | None = TOKEN, **context: Any) -> Page:
        context.setdefault("viewport", {"width": 1280, "height": 800})
        # Whose clock and words these are must not depend on the machine.
        made = browser.new_context(locale="en-GB", timezone_id="Europe/Berlin", **context)
        made.set_default_timeout(20_000)
        if login is not None:
            answer = made.request.post(f"{master.url}/v1/session", data={"token": login})
            assert answer.ok, answer.text()
        page = made.new_page()
        errors: list[str] = []
        page.on("console", lambda message: note(message, errors))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("response", lambda response: refused(response, errors))
        pages.append((page, errors))
        page.goto(f"{master.url}/{address}")
        return page

    yield open_it
    said = [error for page, errors in pages for error in errors]
    for page, _ in pages:
        page.context.close()
    assert said == []


def refused(response: Response, errors: list[str]) -> None:
    """What the dashboard is made of must be there, and the master must have no bug."""
    if response.status >= 500 or (response.status >= 400 and "/static/" in response.url):
        errors.append(f"{response.status} {response.url}")


def note(message: ConsoleMessage, errors: list[str]) -> None:
    """Chromium itself calls every refused request an error: those that the dashboard expects are none."""
    if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
        errors.append(f"{message.type}: {message.text}")


@pytest.fixture
def keep() -> Callable[[Page, str], None]:
    """Keeps a screenshot for people, where SLOTWISE_SCREENSHOTS is not 0."""

    def take(page: Page, name: str) -> None:
        if os.environ.get("SLOTWISE_SCREENSHOTS") != "0":
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    return take
