"""When a job whose driver has ended badly gets another one (Flink's restart strategies)."""

from __future__ import annotations

import enum

import msgspec

from slotwise.model.errors import SizeError


class RestartKind(enum.Enum):
    """Flink's names for the strategies (``restart-strategy.type``)."""

    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    EXPONENTIAL_DELAY = "exponential-delay"


class RestartStrategy(msgspec.Struct, frozen=True):
    """When a job whose driver has ended badly gets another one. Times in seconds.

    ``attempts``: restarts that are allowed, in all for FIXED_DELAY, since the last quiet time for EXPONENTIAL_DELAY
    (-1: any number). ``delay_s``: the wait before a restart; EXPONENTIAL_DELAY multiplies it by ``multiplier`` each
    time, up to ``max_delay_s``, and goes back to the first after ``reset_s`` without a failure.
    """

    kind: RestartKind = RestartKind.EXPONENTIAL_DELAY
    attempts: int = 3
    delay_s: float = 1.0
    max_delay_s: float = 60.0
    multiplier: float = 1.5
    reset_s: float = 3600.0


def check_strategy(strategy: RestartStrategy) -> None:
    """Raise :class:`SizeError` for figures that make no sense."""
    if strategy.attempts < -1:
        raise SizeError(f"{strategy.attempts} restarts: give 0 or more, or -1 for any number")
    if strategy.delay_s < 0 or strategy.max_delay_s < strategy.delay_s or strategy.reset_s < 0:
        raise SizeError("a restart's delay must be 0 or more and at most the longest delay")
    if strategy.multiplier < 1:
        raise SizeError(f"a restart delay's multiplier must be 1 or more, not {strategy.multiplier:g}")
