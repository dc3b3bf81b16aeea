"""A job's whole life as somebody with a browser sees it: real master, real worker, real Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.clusters import SMALL, sandbox_at, wait_for
from tests.integration.test_recovery import Restartable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.spark, pytest.mark.long]

PROGRAM = Path(__file__).with_name("programs") / "counts.py"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Restartable]:
    with sandbox_at(tmp_path) as sandbox:
        made = Restartable(sandbox)
        made.start()
        yield made
        made.stop()


def log_in(page: Page, cluster: Restartable) -> None:
    """As a person does: the token is in a file that the master names."""
    page.get_by_label("Token").fill((cluster.sandbox.directory / "state" / "token").read_text().strip())
    page.get_by_role("button", name="Log in").click()


def test_a_job_is_submitted_watched_understood_cancelled_and_found_again(
    cluster: Restartable, browser: Browser, keep: Callable[[Page, str], None]
) -> None:
    url = f"http://127.0.0.1:{cluster.port}"
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.set_default_timeout(60_000)
    page.goto(url)
    log_in(page, cluster)
    page.get_by_text("No worker is registered.").first.wait_for()

    # It waits, and the page says why.
    argv = ("submit", "--quiet", "--name", "counting", "--num-executors", "1", *SMALL, str(PROGRAM))
    done = cluster.sandbox.run(*argv)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    page.get_by_role("link", name="counting").click()
    page.get_by_text("Why it is waiting").wait_for()
    assert re.search(r"missing: 0 worker\(s\) registered", page.locator("#explanation").inner_text())
    keep(page, "end-to-end-waiting")

    # A worker comes, and the job's two slots with it.
    page.get_by_role("link", name="Slots").first.click()
    page.get_by_text("No worker is registered.").wait_for()
    cluster.start_worker("--cpus", "2", "--memory", "3g")
    page.locator("canvas[data-slots='2']").wait_for()
    page.locator(".legend", has_text="counting").wait_for()
    keep(page, "end-to-end-slots")

    # Its output follows.
    page.goto(f"{url}/#/jobs/{job}/logs/driver-1.out")
    page.get_by_text("round 0: 1000 rows").wait_for()
    page.get_by_text("round 4: 1000 rows").wait_for()
    page.locator(".badge", has_text="running").wait_for()
    keep(page, "end-to-end-logs")

    # Spark's own pages, through the master's port.
    page.goto(f"{url}/#/jobs/{job}")
    page.get_by_text("1 of 1").first.wait_for()
    with page.expect_popup() as popup:
        page.locator("#spark-ui").click()
    spark = popup.value
    spark.wait_for_url(f"{url}/v1/jobs/{job}/spark-ui/jobs/")
    spark.get_by_text("Completed Jobs").first.wait_for()
    spark.get_by_role("link", name="Executors").click()
    spark.wait_for_url(f"{url}/v1/jobs/{job}/spark-ui/executors/")
    spark.locator("#active-executors-table tbody tr").nth(1).wait_for()
    keep(spark, "end-to-end-spark-ui")
    spark.close()

    # It is cancelled, and its slots go.
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("heading", name="The job was cancelled").wait_for()
    page.goto(f"{url}/#/slots")
    page.locator("canvas[data-slots='0']").wait_for()

    # Under another master it is there with all that it said.
    cluster.kill()
    page.get_by_text("Connection lost, trying again.").wait_for()
    keep(page, "end-to-end-lost")
    cluster.start()
    page.get_by_text("Your session has ended.").wait_for()
    log_in(page, cluster)
    page.goto(f"{url}/#/jobs?q=counting")
    page.get_by_role("link", name="counting").click()
    page.get_by_role("heading", name="The job was cancelled").wait_for()
    page.get_by_role("link", name="Logs").click()
    page.get_by_text("round 4: 1000 rows").wait_for()
    page.get_by_text("The log is complete").wait_for()
    keep(page, "end-to-end-found-again")
    page.context.close()
    wait_for(lambda: not cluster.drivers(), 30, "the end of the driver")
