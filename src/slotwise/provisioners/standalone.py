"""Workers that come by themselves (FLIP-6 'Standalone'): there is nothing to start, and nothing to stop."""

from __future__ import annotations

from slotwise.model.ids import WorkerId
from slotwise.protocol.effects import StartWorker
from slotwise.provisioners.base import FromBefore


class StandaloneProvisioner:
    """Never asked to start a worker, because a standalone cluster's sizing has no worker shape."""

    def recover(self) -> FromBefore:
        """They come by themselves again, too."""
        return FromBefore()

    def start_worker(self, wish: StartWorker) -> None:
        """Raises RuntimeError: a standalone cluster does not start workers."""
        raise RuntimeError(f"a standalone cluster cannot start {wish.worker} ({wish.total})")

    def stop_worker(self, worker: WorkerId) -> None:
        """Nothing: standalone workers are their hosts' business."""

    async def close(self, grace_s: float, *, leave: bool = False) -> None:
        """Nothing to end."""
