"""Which warm applications a Dispatcher keeps: drivers with a SparkContext and executors, ready for a program. No I/O.

A job takes one that was made for jobs like it: all that its driver and executors were started with must be the same
(:func:`kind_of`). What is kept follows what was submitted last; each is used once."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from slotwise.model.ids import JobId
from slotwise.model.job import JobSpec

_KINDS_KEPT = 8
_RETRY_S = 30.0
_LONGEST_RETRY_S = 600.0
# What these bring must come from the job itself: files may have changed since, and listeners would see what is not its.
_OWN = (
    "spark.archives",
    "spark.driver.extraClassPath",
    "spark.eventLog.enabled",
    "spark.executor.extraClassPath",
    "spark.extraListeners",
    "spark.files",
    "spark.jars",
    "spark.plugins",
    "spark.sql.extensions",
    "spark.sql.queryExecutionListeners",
    "spark.submit.pyFiles",
)


class WarmApplicationPolicy(msgspec.Struct, frozen=True):
    """``most``: so many warm applications at most, 0 for none. ``quiet_s``: so long after the last submission none is
    begun. ``idle_s``: so long after the last job of its kind one is kept.
    """

    most: int = 0
    quiet_s: float = 3.0
    idle_s: float = 600.0


@dataclass
class WarmEntry:
    """One of them. ``waits``: it can be taken; ``waited``: it could once; ``ending``: it is to end; ``seq``: the last
    status that was heard.
    """

    job: JobId
    kind: JobSpec
    waits: bool = False
    waited: bool = False
    ending: bool = False
    seq: int = 0


@dataclass
class _Recent:
    """A kind of job. ``failures``: so many of its applications in a row have failed before they waited; the next one is
    not begun before ``not_before``.
    """

    kind: JobSpec
    used: float
    failures: int = 0
    not_before: float = 0.0


def kind_of(spec: JobSpec) -> JobSpec | None:
    """What all jobs that could use the same warm application have in common; None for a job that can use none."""
    own = any(key.startswith(_OWN) and value.lower() != "false" for key, value in spec.conf.items())
    brings = spec.uploads is not None or bool(spec.py_files or spec.files or spec.archives or spec.jars)
    if own or brings or spec.pipeline is not None:
        return None
    return msgspec.structs.replace(spec, name="warm application", program="/", args=(), restart=None)


class WarmApplications:
    """See the module's head. The Dispatcher starts and ends what this says."""

    def __init__(self, policy: WarmApplicationPolicy) -> None:
        self.entries: dict[JobId, WarmEntry] = {}
        # Submissions that were given one, and that could have had one; those that failed before they waited.
        self.outcomes = {"hit": 0, "miss": 0, "failed": 0}
        self._policy = policy
        self._recent: list[_Recent] = []
        self._not_before = 0.0

    @property
    def active(self) -> bool:
        """Whether there is anything to look after."""
        return bool(self.entries) or (self._policy.most > 0 and bool(self._recent))

    def take(self, spec: JobSpec, now: float) -> WarmEntry | None:
        """One that ``spec`` can have, which is then its job. Whether or not there is one, there will be more of its
        kind.
        """
        if self._policy.most <= 0 or (kind := kind_of(spec)) is None:
            return None
        self._not_before = max(self._not_before, now + self._policy.quiet_s)
        known = self._find(kind) or _Recent(kind, now)
        known.used = now
        others = [recent for recent in self._recent if recent is not known]
        self._recent = [known, *others[: _KINDS_KEPT - 1]]
        for entry in self.entries.values():
            if entry.waits and not entry.ending and entry.kind == kind:
                self.outcomes["hit"] += 1
                return self.entries.pop(entry.job)
        self.outcomes["miss"] += 1
        return None

    def give_back(self, job: JobId, spec: JobSpec) -> None:
        """One that was taken could not be used after all. It is not known what it has heard: it is to end."""
        kind = kind_of(spec)
        assert kind is not None
        self.entries[job] = WarmEntry(job, kind, ending=True)

    def wanted(self, now: float) -> JobSpec | None:
        """The kind of one to begin now, if any; and mark those that are not wanted any more."""
        self._recent = [recent for recent in self._recent if now - recent.used < self._policy.idle_s]
        missing = [self._recent[number % len(self._recent)] for number in range(self._policy.most) if self._recent]
        for entry in self.entries.values():
            if entry.ending:
                continue
            held = next((recent for recent in missing if recent.kind == entry.kind), None)
            if held is not None:
                missing.remove(held)
            else:
                entry.ending = True
        missing = [recent for recent in missing if now >= recent.not_before]
        # One at a time, and none while another makes room for it.
        if not missing or now < self._not_before or any(one.ending or not one.waits for one in self.entries.values()):
            return None
        return missing[0].kind

    def stop(self) -> None:
        """None is wanted any more."""
        self._policy = WarmApplicationPolicy()

    def begun(self, job: JobId, kind: JobSpec) -> None:
        """One is being started."""
        self.entries[job] = WarmEntry(job, kind)

    def heard(self, job: JobId, seq: int, waits: bool) -> None:
        """How it is."""
        entry = self.entries[job]
        if seq > entry.seq:
            entry.seq = seq
            entry.waits = waits
            entry.waited |= waits
            if waits and (known := self._find(entry.kind)) is not None:
                known.failures = 0

    def gone(self, job: JobId, now: float, *, failed: bool = False) -> None:
        """It has ended. If nobody here wanted that, another one of its kind is not begun at once; and the later, the
        more of them have ``failed`` before they waited.
        """
        entry = self.entries.pop(job)
        if entry.ending:
            return
        failed = failed and not entry.waited
        self.outcomes["failed"] += failed
        if (known := self._find(entry.kind)) is None:
            return
        known.failures += failed
        pause_s = min(_RETRY_S * 2 ** max(0, known.failures - 1), _LONGEST_RETRY_S)
        known.not_before = max(known.not_before, now + pause_s)

    def _find(self, kind: JobSpec) -> _Recent | None:
        return next((recent for recent in self._recent if recent.kind == kind), None)
