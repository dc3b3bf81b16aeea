"""Whether and when a failed driver is followed by another (Flink's restart strategies; B: A-06, F-01). Pure."""

from __future__ import annotations

from slotwise.model.job import JobResult
from slotwise.model.restart import RestartKind, RestartStrategy


def limit_reached(result: JobResult, count: int) -> JobResult:
    """The result of a job that was restarted ``count`` times and is not to be again, which says so."""
    if not count:
        return result
    reason = f"{result.reason}; it was restarted {count} time(s), which is the limit"
    return JobResult(result.state, result.exit_code, reason, result.log_tail)


class Restarts:
    """Counts the failures of one job. ``failures``: those that the strategy still counts, from an earlier leader."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures

    def delay_s(self, strategy: RestartStrategy, ran_s: float) -> float | None:
        """Count a failure after ``ran_s`` seconds without one; returns the wait before the restart, or None when there
        is to be none.
        """
        if strategy.kind is RestartKind.NONE:
            return None
        if strategy.kind is RestartKind.EXPONENTIAL_DELAY and ran_s >= strategy.reset_s:
            self.failures = 0
        if 0 <= strategy.attempts <= self.failures:
            return None
        self.failures += 1
        if strategy.kind is RestartKind.FIXED_DELAY:
            return strategy.delay_s
        # The exponent is bounded: no power of a float may overflow after a thousand restarts.
        factor = strategy.multiplier ** min(self.failures - 1, 64)
        return min(strategy.delay_s * factor, strategy.max_delay_s)
