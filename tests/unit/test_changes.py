"""What watchers of changes see, and when."""

from __future__ import annotations

import asyncio

from slotwise.runtime.changes import PAUSE_S, Changes


def test_what_is_noted_is_seen_once_it_is_published_and_once_only() -> None:
    async def act() -> None:
        changes = Changes(1)
        start = changes.position
        changes.note(["a", "b"])
        # A watcher that looks now would send this again and again until it is published.
        assert changes.since(start) == ()
        await changes.wait(60)
        assert changes.since(start) == ("a", "b")
        seen = changes.position
        changes.note(["b", "c"])
        assert changes.since(seen) == ()
        assert changes.since(start) == ("a", "b")
        await changes.wait(60)
        assert changes.since(seen) == ("b", "c")
        assert changes.since(start) == ("a", "b", "c")
        assert changes.since(changes.position) == ()
        assert changes.since(changes.position + 1) is None

    asyncio.run(asyncio.wait_for(act(), 60 + 10 * PAUSE_S))


def test_a_watcher_that_falls_behind_too_many_topics_is_told_to_fetch_everything() -> None:
    async def act() -> None:
        changes = Changes(1)
        start = changes.position
        changes.note(["first"])
        await changes.wait(60)
        seen = changes.position
        changes.note(f"job:{number}" for number in range(10_001))
        await changes.wait(60)
        assert changes.since(start) is None
        assert changes.since(seen) is None
        assert changes.since(changes.position) == ()

    asyncio.run(asyncio.wait_for(act(), 130))
