"""What each job lacks and why, and what it was told about it (B: D-09, D-10).

A job is looked at again only when the plan for it has changed, or something that its shortages are explained by: the
workers that there are and are coming, what blocked ones have free, how the provisioner fails."""

from __future__ import annotations

from collections.abc import Callable

from slotwise.model.ids import Address, JobId
from slotwise.model.requirements import Counts, requirements_of
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.effects import Effects
from slotwise.protocol.messages import NotEnoughResources, Shortage, ShortageReason
from slotwise.protocol.outbox import Outbox
from slotwise.resourcemanager.matching import Plan
from slotwise.resourcemanager.slot_manager import SlotManager

_Facts = tuple[int, str]
_Cause = tuple[ShortageReason, str, bool]
"""(reason, detail, whether waiting cannot help)."""


class Notices:
    """``plan``: the last check's. ``start_failure``: why the last attempt to start a worker failed, in words."""

    def __init__(self, slots: SlotManager, out: Outbox) -> None:
        self.plan = Plan()
        self.start_failure = ""
        self._slots = slots
        self._out = out
        self._told: dict[JobId, NotEnoughResources] = {}
        self._anew: set[JobId] = set()
        self._told_of = Plan()
        self._told_at: _Facts = (-1, "")
        self._causes: dict[ResourceProfile | None, _Cause] = {}
        self._causes_at: _Facts = (-1, "")

    def announce(self, address_of: Callable[[JobId], Address | None], effects: Effects) -> None:
        """Tell each job what it lacks and why, when that has changed since it was told."""
        now, before, facts = self.plan, self._told_of, self._facts()
        same_facts = facts == self._told_at
        for job in {**now.waiting, **now.unserved, **self._told}:
            if (
                same_facts
                and job not in self._anew
                and _same(now.waiting.get(job), before.waiting.get(job))
                and _same(now.unserved.get(job), before.unserved.get(job))
            ):
                continue
            self._tell(job, address_of(job), effects)
        self._told_of, self._told_at = now, facts
        self._anew.clear()

    def _tell(self, job: JobId, address: Address | None, effects: Effects) -> None:
        entry = self._slots.ledger.get(job)
        if entry is None or address is None:
            return
        missing = tuple(self.shortages(job))
        told = self._told.get(job)
        if missing == (told.missing if told is not None else ()):
            return
        notice = NotEnoughResources(requirements_of(entry.held), missing)
        if missing:
            self._told[job] = notice
        else:
            del self._told[job]
        self._out.send(effects, address, notice)

    def repeat(self, job: JobId, address: Address, effects: Effects) -> None:
        """Say again what the job was told, if it lacks something."""
        notice = self._told.get(job)
        if notice is not None:
            self._out.send(effects, address, notice)

    def forget(self, job: JobId) -> None:
        """The job is gone, and would have to be told anew."""
        self._told.pop(job, None)
        self._anew.add(job)

    def shortages(self, job: JobId) -> list[Shortage]:
        """What ``job`` lacked at the last check, and why."""
        found = []
        coming = len(self._slots.pending)
        for profile, count in self.plan.waiting.get(job, {}).items():
            if coming:
                detail = f"{coming} worker(s) starting"
                found.append(Shortage(profile, count, ShortageReason.WORKERS_COMING, detail))
            else:
                detail = f"the last attempt failed: {self.start_failure}; trying again"
                found.append(Shortage(profile, count, ShortageReason.PROVISIONER_FAILING, detail))
        for profile, count in self.plan.unserved.get(job, {}).items():
            reason, detail, final = self._cause(profile)
            found.append(Shortage(profile, count, reason, detail, final))
        return found

    def _facts(self) -> _Facts:
        return self._slots.fleet.revision, self.start_failure

    def _cause(self, profile: ResourceProfile | None) -> _Cause:
        """Why a slot that is planned nowhere cannot be had; the same for all jobs until the facts change."""
        facts = self._facts()
        if facts != self._causes_at:
            self._causes_at = facts
            self._causes.clear()
        if profile not in self._causes:
            self._causes[profile] = self._find_cause(profile)
        return self._causes[profile]

    def _find_cause(self, profile: ResourceProfile | None) -> _Cause:
        slots = self._slots
        shape, fleet = slots.sizing.worker, slots.fleet
        if profile is not None and not slots.fits_any_worker(profile) and (fleet.workers or shape):
            largest = shape.total if shape else fleet.largest()
            detail = f"a slot of {profile} is larger than any worker ({largest})"
            return ShortageReason.TOO_LARGE, detail, shape is not None
        if shape is None and fleet.has_blocked_room(profile):
            return ShortageReason.BLOCKED, "there is room for it on blocked workers only", False
        if shape is None:
            detail = f"{len(fleet.workers)} worker(s) registered, none with room for it"
            return ShortageReason.NO_WORKERS, detail, False
        detail = f"{fleet.count()} worker(s) of {shape.total} are all that is allowed"
        return ShortageReason.CLUSTER_FULL, detail, False

    def check_invariants(self) -> None:
        """Raise AssertionError unless the causes that are kept hold, and the jobs were told what they lack."""
        facts = self._facts()
        if self._causes_at == facts:
            for profile, cause in self._causes.items():
                assert cause == self._find_cause(profile), f"the cause of a shortage of {profile} is out of date"
        if self._told_of is self.plan and self._told_at == facts:
            for job in {**self.plan.waiting, **self.plan.unserved, **self._told}:
                if job not in self._anew and self._slots.ledger.get(job) is not None:
                    told = self._told.get(job)
                    missing = told.missing if told is not None else ()
                    assert missing == tuple(self.shortages(job)), f"{job} was told something else than what it lacks"


def _same(one: Counts | None, other: Counts | None) -> bool:
    """Whether both say the same in the same order. What has not changed is nearly always the same object."""
    return one is other or (
        one is not None and other is not None and one == other and list(one.items()) == list(other.items())
    )
