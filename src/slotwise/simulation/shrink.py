"""Makes a failing scenario shorter: leaves out faults, jobs, hosts and kinds of message faults, and ends the faults
earlier, as long as the same rule is still violated.

A part that is left out has a label: ``f3`` the fourth fault of the seed, ``j2`` a job, ``w4`` a host, and ``loss``,
``duplicate``, ``spike``, ``jitter``, ``stray`` what befalls messages. A label with a time, ``f3=2.5``, shortens a
fault to so many seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from slotwise.simulation.run import simulate
from slotwise.simulation.scenario import NetworkPlan, Scenario

_NETWORK = {"loss": "loss", "duplicate": "duplicate", "spike": "spike", "jitter": "jitter_s", "stray": "stray"}


class Cut(msgspec.Struct, frozen=True):
    """What to leave out of a seed's scenario. ``until_s``: when its faults end (None: as drawn)."""

    without: tuple[str, ...] = ()
    until_s: float | None = None

    def arguments(self) -> str:
        """As the options of the command line."""
        parts = []
        if self.without:
            parts.append("--without " + ",".join(self.without))
        if self.until_s is not None:
            parts.append(f"--until {self.until_s:g}")
        return " ".join(parts)


def labels(scenario: Scenario) -> list[str]:
    """Everything that can be left out, the most telling last."""
    network = [name for name, attribute in _NETWORK.items() if getattr(scenario.network, attribute)]
    faults = [f"f{number}" for number in range(len(scenario.faults))]
    return faults + [plan.name for plan in scenario.hosts] + [plan.name for plan in scenario.jobs] + network


def reduced(scenario: Scenario, cut: Cut) -> Scenario:
    """The scenario without what ``cut`` leaves out. Raises ValueError for a label that it does not have."""
    gone = {label for label in cut.without if "=" not in label}
    unknown = gone - set(labels(scenario)) - set(_NETWORK)
    if unknown:
        raise ValueError(
            f"seed {scenario.seed} has no {', '.join(sorted(unknown))}; it has {', '.join(labels(scenario))}"
        )
    shorter = dict(label.split("=", 1) for label in cut.without if "=" in label)
    faults = tuple(
        msgspec.structs.replace(fault, for_s=float(shorter.get(f"f{number}", fault.for_s)))
        for number, fault in enumerate(scenario.faults)
    )
    network: NetworkPlan = msgspec.structs.replace(
        scenario.network, **{attribute: 0.0 for name, attribute in _NETWORK.items() if name in gone}
    )
    return msgspec.structs.replace(
        scenario,
        network=network,
        hosts=tuple(plan for plan in scenario.hosts if plan.name not in gone),
        jobs=tuple(plan for plan in scenario.jobs if plan.name not in gone),
        faults=tuple(fault for number, fault in enumerate(faults) if f"f{number}" not in gone),
        left_out=tuple(sorted(gone)),
        faults_s=scenario.faults_s if cut.until_s is None else min(cut.until_s, scenario.faults_s),
    )


def shrink(scenario: Scenario, rule: str, tell: Callable[[str], None] = lambda _: None) -> Cut:
    """The smallest cut that was found under which the scenario still violates ``rule``."""
    best = Cut()

    def still(cut: Cut) -> bool:
        nonlocal best
        outcome = simulate(reduced(scenario, cut))
        if outcome.rule != rule:
            return False
        best = cut
        tell(f"{len(cut.without)} parts left out, faults for {cut.until_s or scenario.faults_s:g} s")
        return True

    before: Cut | None = None
    while before != best:
        before = best
        _end_earlier(scenario, still, lambda: best)
        _leave_out(scenario, still, lambda: best)
        _shorten(scenario, still, lambda: best)
    return best


def _end_earlier(scenario: Scenario, still: Callable[[Cut], bool], best: Callable[[], Cut]) -> None:
    outcome = simulate(reduced(scenario, best()))
    end = best().until_s or scenario.faults_s
    for until in (round(outcome.cluster.engine.now + 0.1, 1), round(end / 2, 1), round(end * 0.8, 1)):
        if until < (best().until_s or scenario.faults_s) and still(Cut(best().without, until)):
            return


def _leave_out(scenario: Scenario, still: Callable[[Cut], bool], best: Callable[[], Cut]) -> None:
    size = len(labels(scenario))
    while size:
        left = [label for label in labels(scenario) if label not in best().without]
        size = min(size, len(left))
        for start in range(0, len(left), max(size, 1)):
            also = left[start : start + size]
            still(Cut(_joined(best().without, also), best().until_s))
        size //= 2


def _shorten(scenario: Scenario, still: Callable[[Cut], bool], best: Callable[[], Cut]) -> None:
    for number, fault in enumerate(scenario.faults):
        label = f"f{number}"
        named = {known.partition("=")[0]: known for known in best().without}
        if label in best().without or fault.for_s <= 1:
            continue
        others = tuple(known for known in best().without if known != named.get(label))
        now = float(named[label].partition("=")[2]) if label in named else fault.for_s
        still(Cut(_joined(others, [f"{label}={now / 2:.2f}"]), best().until_s))


def _joined(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    """Without the shortening of what is left out anyway."""
    every = dict.fromkeys((*one, *other))
    return tuple(label for label in every if "=" not in label or label.partition("=")[0] not in every)
