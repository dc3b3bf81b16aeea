"""One scenario from beginning to end: faults, then healing, then the end of all jobs."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable

from slotwise.simulation.cluster import Cluster
from slotwise.simulation.convergence import unfinished, unsettled
from slotwise.simulation.scenario import Scenario
from slotwise.simulation.story import Violation

_LOOK_EVERY_S = 5.0
# The RM forgets a job whose farewell was lost after so many time-outs.
_FORGET_TIMEOUTS = 12


class Outcome:
    """How a run went. ``violation`` is None when all was well."""

    def __init__(self, cluster: Cluster, violation: Violation | None) -> None:
        self.cluster = cluster
        self.violation = violation

    @property
    def rule(self) -> str | None:
        """The rule that was violated."""
        return None if self.violation is None else self.violation.rule

    def story(self, limit: int = 400) -> list[str]:
        """What happened to the objects that the violation is about."""
        if self.violation is None:
            return []
        names = {name for name in self.violation.involved if name}
        for client in self.cluster.clients:
            if client.job in names:
                names.add(client.plan.name)
        return self.cluster.log.story(names, limit)


def simulate(scenario: Scenario) -> Outcome:
    """Run a scenario. Whatever a machine raises counts as a violation."""
    enabled = gc.isenabled()
    # Nothing here is freed before the end anyway; collecting would take a fifth of the time.
    gc.disable()
    cluster = Cluster(scenario)
    try:
        _run(cluster)
    except Violation as violation:
        return Outcome(cluster, violation)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(
            f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})" for frame in frames[::-1]
        )
        involved = [word.strip("',:") for word in str(error).split() if "-" in word]
        text = f"{type(error).__name__}: {error}; {where}"
        return Outcome(cluster, Violation("machines-do-not-raise", text, *involved))
    finally:
        if enabled:
            gc.enable()
    return Outcome(cluster, None)


def _run(cluster: Cluster) -> None:
    scenario, engine = cluster.scenario, cluster.engine
    engine.run(scenario.faults_s)
    cluster.injector.heal()
    engine.run(engine.now + 2 * _LOOK_EVERY_S)
    _until(cluster, unsettled, scenario.quiet_s)
    cluster.note("clients", "cancel all jobs that are not over")
    for client in cluster.clients:
        if client.job is not None and cluster.store.jobs[client.job].result is None:
            client.cancel()
    _until(cluster, unfinished, scenario.quiet_s + _FORGET_TIMEOUTS * scenario.rm.heartbeat_timeout_s)


def _until(cluster: Cluster, problems: Callable[[Cluster], Iterable[Violation]], limit_s: float) -> None:
    until = cluster.engine.now + limit_s
    while True:
        problem = next(iter(problems(cluster)), None)
        if problem is None:
            return
        if cluster.engine.now >= until:
            raise Violation(problem.rule, f"{limit_s:.0f} s after the faults: {problem.text}", *problem.involved)
        cluster.engine.run(cluster.engine.now + _LOOK_EVERY_S)
