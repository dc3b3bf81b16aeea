"""The states of a job and its legal moves, in one place."""

from __future__ import annotations

from slotwise.model.job import JobState

MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.CREATED: frozenset({JobState.WAITING_FOR_RESOURCES, JobState.RECONCILING, JobState.CANCELED}),
    JobState.WAITING_FOR_RESOURCES: frozenset({JobState.DEPLOYING, JobState.CANCELLING, JobState.FAILED}),
    # Deploying: the driver's processes are being started.
    JobState.DEPLOYING: frozenset(
        {
            JobState.RUNNING,
            JobState.RECONCILING,
            JobState.RESTARTING,
            JobState.CANCELLING,
            JobState.FAILING,
            JobState.FAILED,
            JobState.FINISHED,
        }
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.RECONCILING,
            JobState.RESTARTING,
            JobState.CANCELLING,
            JobState.FAILING,
            JobState.FAILED,
            JobState.FINISHED,
        }
    ),
    # Reconciling: the driver may live, but nobody has heard of it since its worker or the job's leader was lost.
    JobState.RECONCILING: frozenset(
        {
            JobState.DEPLOYING,
            JobState.RUNNING,
            JobState.RESTARTING,
            JobState.CANCELLING,
            JobState.FAILED,
            JobState.FINISHED,
        }
    ),
    # Restarting: the driver has ended and is to be followed by another; what is left of it is being ended.
    JobState.RESTARTING: frozenset({JobState.WAITING_FOR_RESOURCES, JobState.CANCELLING, JobState.FAILED}),
    JobState.FAILING: frozenset({JobState.FAILED, JobState.CANCELLING}),
    JobState.CANCELLING: frozenset({JobState.CANCELED}),
    JobState.FINISHED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELED: frozenset(),
}


def may_move(old: JobState, new: JobState) -> bool:
    """Whether a job may go from ``old`` to ``new``."""
    return new in MOVES[old]
