"""Identifiers and fencing tokens (FLIP-6, 'Resource Allocation Details').

All ids are short opaque strings. They are drawn by an :class:`IdSource` that is handed to each machine, so that a
simulation can replay them.
"""

from typing import NewType, Protocol

JobId = NewType("JobId", str)
"""A job over its whole lifetime."""

AllocationId = NewType("AllocationId", str)
"""One slot, from its allocation to its release."""

WorkerId = NewType("WorkerId", str)
"""FLIP-6's ResourceID: one worker process. A restarted process has a new one."""

Address = NewType("Address", str)
"""Where a message goes: ``dispatcher``, ``rm``, ``jm:<job id>`` or ``te:<worker id>``."""

LeaderToken = NewType("LeaderToken", int)
"""FLIP-6's leader id. Rises with every grant of leadership; 0 means 'not known yet'."""

UNKNOWN_TOKEN = LeaderToken(0)

DISPATCHER = Address("dispatcher")
RESOURCE_MANAGER = Address("rm")


def job_master_address(job: JobId) -> Address:
    """The address of the JobMaster of ``job``."""
    return Address(f"jm:{job}")


def worker_address(worker: WorkerId) -> Address:
    """The address of the TaskExecutor on ``worker``."""
    return Address(f"te:{worker}")


class IdSource(Protocol):
    """Draws ids and secrets. The production one is random, the simulation's comes from its seed."""

    def new_id(self, prefix: str) -> str:
        """A fresh id that starts with ``prefix`` and a dash."""
        ...

    def new_secret(self) -> str:
        """At least 128 bits in hexadecimal, fit for authentication."""
        ...
