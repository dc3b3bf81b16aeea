"""Finds a browser for the dashboard's tests. ``python -m tests.browser.chromium`` says which, or how to get one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A sandbox of its own needs rights that containers and root do not have; what it shows here are pages of ours.
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")


def find() -> str | None:
    """The browser's path: SLOTWISE_CHROMIUM, else the first of its names on the PATH."""
    given = os.environ.get("SLOTWISE_CHROMIUM")
    if given:
        return shutil.which(given)
    return next((path for path in map(shutil.which, NAMES) if path), None)


def lacking() -> str | None:
    """What is missing for these tests, with what to do; None when nothing is."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed; run make setup"
    if find() is None:
        return "there is no Chromium; on Debian: apt-get install chromium, or name one with SLOTWISE_CHROMIUM=/path"
    return None


if __name__ == "__main__":
    reason = lacking()
    print(reason or find())
    sys.exit(1 if reason else 0)
