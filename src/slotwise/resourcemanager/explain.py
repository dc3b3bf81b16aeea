"""Why a job has what it has, as a value (B: D-10)."""

from __future__ import annotations

import msgspec

from slotwise.model.ids import JobId
from slotwise.model.requirements import Requirements
from slotwise.protocol.messages import Shortage, ShortageReason

_HELP = {
    ShortageReason.CLUSTER_FULL: (
        "wait until other jobs give slots back, allow more workers (--workers, slotmanager.max-total-resource.*, "
        "slotmanager.number-of-slots.max), or ask for fewer or smaller slots"
    ),
    ShortageReason.TOO_LARGE: (
        "ask for smaller slots (memory or cores of driver or executors), or give the cluster larger workers "
        "(--worker-cpus, --worker-memory, taskmanager.*)"
    ),
    ShortageReason.WORKERS_COMING: "nothing: the workers that were asked for have this job's slots planned on them",
    ShortageReason.PROVISIONER_FAILING: "see why workers cannot be started; the request is kept and tried again",
    ShortageReason.NO_WORKERS: "start another worker (slotwise worker), or wait for slots to be given back",
    ShortageReason.BLOCKED: "unblock the workers, or add others",
}


class Unmet(msgspec.Struct, frozen=True):
    """A missing requirement and ``help``, what would bring it."""

    shortage: Shortage
    help: str


class Explanation(msgspec.Struct, frozen=True):
    """A job's account at the last check. ``ahead``: how many jobs are served before it; ``known``: whether the job
    has declared anything to this ResourceManager.
    """

    job: JobId
    known: bool
    required: Requirements = ()
    acquired: Requirements = ()
    pending: int = 0
    ahead: int = 0
    unmet: tuple[Unmet, ...] = ()

    @property
    def summary(self) -> str:
        """One sentence for people."""
        if not self.known:
            return "the ResourceManager has no declaration of this job: it has ended, or has not begun"
        wanted = sum(requirement.count for requirement in self.required)
        held = sum(requirement.count for requirement in self.acquired)
        if not self.unmet:
            return f"it has all {wanted} slot(s) that it requires"
        why = "; ".join(
            f"{unmet.shortage.count} × ({unmet.shortage.profile or 'default slot'}) missing: {unmet.shortage.detail}"
            for unmet in self.unmet
        )
        return f"it has {held} of {wanted} slot(s); {why}"


def explain_shortages(shortages: list[Shortage]) -> tuple[Unmet, ...]:
    """Each shortage with what would help."""
    return tuple(Unmet(shortage, _HELP[shortage.reason]) for shortage in shortages)
