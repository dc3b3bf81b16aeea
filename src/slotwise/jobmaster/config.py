"""The times and limits of a JobMaster."""

from __future__ import annotations

import msgspec

from slotwise.model.restart import RestartStrategy


class JobMasterConfig(msgspec.Struct, frozen=True):
    """Times in seconds.

    ``resource_wait_timeout_s``: how long to wait for the minimum (−1: for ever); ``stabilisation_s``: how long to wait
    for more once the minimum is there (B: A-01). ``release_timeout_s``: how long to wait for slots to be back after the
    end. ``restart``: what follows when a driver is lost or killed. ``driver_fence_s``: after so long out of sight a
    driver has been ended by its worker's own time-outs; more than their sum. ``max_executor_start_failures``:
    executors that end before they joined, one after the other, until the job fails. ``cool_down_s``: how long after a
    rescale no executor is taken away (B: A-03). ``decommission_timeout_s``: how long one that is taken away may move
    its shuffle and cached blocks.
    """

    heartbeat_interval_s: float = 10.0
    heartbeat_timeout_s: float = 50.0
    registration_retry_s: float = 0.5
    registration_retry_max_s: float = 10.0
    retry_s: float = 2.0
    resource_wait_timeout_s: float = 300.0
    stabilisation_s: float = 2.0
    idle_slot_timeout_s: float = 50.0
    release_timeout_s: float = 30.0
    restart: RestartStrategy = RestartStrategy()
    driver_fence_s: float = 100.0
    max_executor_start_failures: int = 4
    cool_down_s: float = 30.0
    decommission_timeout_s: float = 60.0
    executor_restart_delay_s: float = 1.0
