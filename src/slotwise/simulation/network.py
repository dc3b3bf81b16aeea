"""The network: what befalls a message between two components, and who can reach whom.

There are three kinds of ways: inside a master process (between its Dispatcher, ResourceManager and JobMasters), between
a master and a worker's host, and between clients and the master. Each message is lost, doubled and delayed by chance,
each copy on its own, so that later ones overtake earlier ones. Only the control plane is modelled: executors always
reach a living driver."""

from __future__ import annotations

import random
from collections import Counter

from slotwise.simulation.scenario import NetworkPlan


class Network:
    """See the module's head. ``host`` is None for ways that touch no worker's host."""

    def __init__(self, plan: NetworkPlan, rng: random.Random) -> None:
        self.plan = plan
        self.faulty = True
        self._rng = rng
        self._storms: dict[int, tuple[str, float]] = {}
        self._cut_in: Counter[str] = Counter()
        self._cut_out: Counter[str] = Counter()
        self._cut_pairs: Counter[tuple[str, str]] = Counter()

    # ------------------------------------------------------------------------------------------- faults

    def start_storm(self, key: int, target: str, loss: float) -> None:
        """Lose this share of all messages from and to a host, or of all (``*``)."""
        self._storms[key] = (target, loss)

    def end_storm(self, key: int) -> None:
        """The storm is over."""
        self._storms.pop(key, None)

    def cut(self, host: str, direction: str, sign: int = 1) -> None:
        """Cut a host off (``sign`` 1) or mend that (−1): nothing comes ``in``, goes ``out``, or ``both``."""
        if direction != "out":
            self._cut_in[host] += sign
        if direction != "in":
            self._cut_out[host] += sign

    def cut_pair(self, pair: str, sign: int = 1) -> None:
        """Cut the way between two kinds of components in the master, such as ``rm>jm`` or ``rm<>jm``."""
        if "<>" in pair:
            one, _, other = pair.partition("<>")
            self._cut_pairs[other, one] += sign
        else:
            one, _, other = pair.partition(">")
        self._cut_pairs[one, other] += sign

    def heal(self) -> None:
        """From now on every message comes, once and soon."""
        self.faulty = False
        self._storms.clear()
        self._cut_in.clear()
        self._cut_out.clear()
        self._cut_pairs.clear()

    # ------------------------------------------------------------------------------------------- ways

    def is_cut(self, host: str) -> bool:
        """Whether no stream can live between the master and ``host``."""
        return self._cut_in[host] > 0 or self._cut_out[host] > 0

    def delays(self, host: str | None, inward: bool, sender: str, receiver: str) -> tuple[float, ...]:
        """After how many seconds the copies of a message arrive; none for a lost one. ``inward``: to the host."""
        plan = self.plan
        if not self.faulty:
            return (plan.latency_s,)
        if host is not None:
            if (self._cut_in if inward else self._cut_out)[host] > 0:
                return ()
        elif self._cut_pairs and self._cut_pairs[_kind(sender), _kind(receiver)] > 0:
            return ()
        roll = self._rng.random
        loss = plan.loss
        for target, chance in self._storms.values():
            if target in ("*", host):
                loss = max(loss, chance)
        if loss and roll() < loss:
            return ()
        first = self._delay()
        if plan.duplicate and roll() < plan.duplicate:
            return (first, self._delay())
        return (first,)

    def _delay(self) -> float:
        plan, roll = self.plan, self._rng.random
        if plan.spike and roll() < plan.spike:
            return plan.latency_s + plan.spike_s * roll()
        return plan.latency_s + plan.jitter_s * roll()


def _kind(address: str) -> str:
    return "jm" if address.startswith("jm:") else address
