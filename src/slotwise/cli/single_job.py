"""``slotwise master --job``: a cluster for one job (FLIP-6's single-job cluster, reactive mode; B: A-05).

The job needs no submission. Every worker that registers is filled with its executors at once, and when workers go the
job goes on with those that stay. The cluster ends with its job."""

from __future__ import annotations

import msgspec

from slotwise.cli.console import Screen
from slotwise.cli.follow import JobFollower, exit_code_of
from slotwise.master import Master
from slotwise.model.errors import ClusterError, UsageError
from slotwise.model.job import UNLIMITED_EXECUTORS, JobSpec
from slotwise.uploading import UploadPlan

_KEY = "the-job-of-this-cluster"
_RESTORED = "an unfinished job of another program is in this directory; name another --directory"


def reactive(spec: JobSpec) -> JobSpec:
    """The job, so that it takes every slot there is. Raises :class:`UsageError` for options that say otherwise."""
    if spec.dynamic_allocation:
        raise UsageError("--job takes every slot there is; dynamic allocation would give them back: choose one of them")
    if spec.max_executors is not None:
        raise UsageError("--job takes every slot there is: --max-executors says otherwise")
    return msgspec.structs.replace(
        spec, initial_executors=max(1, spec.min_executors), max_executors=UNLIMITED_EXECUTORS
    )


class SingleJob:
    """The job of ``plan``, of a master that serves no other."""

    def __init__(self, plan: UploadPlan, screen: Screen) -> None:
        self._spec = plan.spec
        self._plan = plan
        self._screen = screen

    async def run(self, master: Master) -> int:
        """Submit the job, or go on with it after a crash of the master; returns the exit code. Raises
        :class:`ClusterError` when it is not accepted.
        """
        mine = [record for record in master.dispatcher.jobs.values() if record.key.startswith(_KEY)]
        unfinished = [record for record in master.dispatcher.jobs.values() if not record.released]
        if any(record not in mine or record.spec != self._spec for record in unfinished):
            raise ClusterError(_RESTORED)
        if not unfinished:
            for name, source in self._plan.sources.items():
                await master.uploads.add(name, source)
        job = unfinished[0].job if unfinished else await master.submit(self._spec, f"{_KEY}-{len(mine) + 1}")
        master.only_job = job
        self._screen.say(f"{'going on with' if unfinished else 'this cluster is for'} {job} ({self._spec.name})")
        follower = JobFollower(master, job, self._screen)
        result = await follower.until_over()
        self._screen.end()
        follower.tell(self._spec.name, result)
        master.end_workers("the job of this cluster is over")
        return exit_code_of(result)
