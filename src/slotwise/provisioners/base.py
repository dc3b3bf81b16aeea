"""What a provisioner of workers is: verbs, no policy (how many and when is the ResourceManager's business)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from slotwise.model.ids import WorkerId
from slotwise.protocol.effects import StartWorker, WorkerExited

ExitListener = Callable[[WorkerExited], None]


class FromBefore(NamedTuple):
    """Workers that an earlier master had started: those that live on and will dial in, as they were asked for, and
    those whose end nobody was told of.
    """

    living: tuple[StartWorker, ...] = ()
    ended: tuple[WorkerId, ...] = ()


class Provisioner(Protocol):
    """Starts and stops workers. Each call returns at once; what comes of it is told to the listener."""

    def recover(self) -> FromBefore:
        """Take over the workers that an earlier master had started here; called once, before the other verbs."""
        ...

    def start_worker(self, wish: StartWorker) -> None:
        """Start a worker of this size that will register under this id."""
        ...

    def stop_worker(self, worker: WorkerId) -> None:
        """Make sure that the worker ends and leaves nothing behind. Unknown ids are ignored."""
        ...

    async def close(self, grace_s: float, *, leave: bool = False) -> None:
        """End all workers, by force after ``grace_s`` seconds; with ``leave`` leave them to the next master instead,
        where they can live without this one.
        """
        ...
