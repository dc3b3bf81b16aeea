"""The settings of the ResourceManager."""

from __future__ import annotations

import msgspec

from slotwise.resourcemanager.sizing import Sizing


class ResourceManagerConfig(msgspec.Struct, frozen=True):
    """Times in seconds. ``placement``: pack or spread. ``start_up_grace_s``: no shortage is announced before it is
    over (B: D-09). ``provisioner_retries_per_minute``: the cap on worker starts after failures (B: SZ-11).
    """

    sizing: Sizing = Sizing()
    placement: str = "pack"
    version: str = ""
    heartbeat_interval_s: float = 10.0
    heartbeat_timeout_s: float = 50.0
    check_delay_s: float = 0.05
    start_up_grace_s: float = 0.0
    allocation_retry_s: float = 2.0
    disconnect_grace_s: float = 0.5
    worker_start_timeout_s: float = 120.0
    provisioner_retry_interval_s: float = 3.0
    provisioner_retries_per_minute: int = 10
