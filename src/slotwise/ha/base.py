"""What an election of the leading master is (FLIP-6, 'Leader election'): one leads, its epoch is above all earlier
ones, and it learns when it leads no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from slotwise.model.errors import SlotwiseError


class NotLeader(SlotwiseError):
    """Another master leads; the text names it and what to do."""


@dataclass(frozen=True)
class Grant:
    """A leadership. ``epoch`` ≥ 1 and above those of all grants before, whoever had them. ``previous_url``: where the
    leader before listened, if that is known. ``lost`` gets the reason when somebody else may lead; nothing may be
    written or started from then on.
    """

    epoch: int
    previous_url: str | None = None
    lost: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class LeaderElection(Protocol):
    """Grants the leadership of one cluster to one master at a time. To be used from one event loop."""

    async def acquire(self, *, wait: bool = False, on_wait: Callable[[str], None] | None = None) -> Grant:
        """Lead. While another does: with ``wait`` until it has ended (``on_wait`` is told once who it is), otherwise
        raise :class:`NotLeader`. Raises :class:`SlotwiseError` when the epoch cannot be known or kept.
        """
        ...

    def announce(self, url: str) -> None:
        """Say where the leader listens, for those who wait and those who are refused."""
        ...

    async def release(self) -> None:
        """Lead no more; the next one may. Does nothing when there is no grant."""
        ...
