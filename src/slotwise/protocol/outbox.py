"""Addressing and fencing, the same for every machine (design decision 3)."""

from __future__ import annotations

from slotwise.model.ids import UNKNOWN_TOKEN, Address, LeaderToken
from slotwise.protocol.effects import Effects
from slotwise.protocol.messages import Envelope, Fenced, Message


class Outbox:
    """Writes envelopes for one machine and remembers the newest token of each leader that it has heard of.

    ``token`` is the machine's own leader token, 0 for one that is no leader.
    """

    def __init__(self, address: Address, token: LeaderToken = UNKNOWN_TOKEN) -> None:
        self.address = address
        self.token = token
        self._next_id = 1
        self._known: dict[Address, LeaderToken] = {}

    def known_token(self, leader: Address) -> LeaderToken:
        """The newest token heard of ``leader``; 0 when none."""
        return self._known.get(leader, UNKNOWN_TOKEN)

    def learn(self, leader: Address, token: LeaderToken) -> bool:
        """Take note of a leader's token; true when it is newer than what was known."""
        if token > self.known_token(leader):
            self._known[leader] = token
            return True
        return False

    def send(self, effects: Effects, to: Address, payload: Message, to_token: LeaderToken | None = None) -> None:
        """Add a message to ``effects``, with the known token of ``to`` unless one is given."""
        token = self.known_token(to) if to_token is None else to_token
        effects.send.append(Envelope(self._next_id, to, token, self.address, self.token, payload))
        self._next_id += 1

    def admit(self, envelope: Envelope, effects: Effects, *, introduces: bool = False) -> bool:
        """Whether a message may take effect (B: D-03, ML-07).

        A message for another leadership than the machine's own, or from a leader that has been replaced, is answered
        with ``Fenced``. Only one that ``introduces`` its sender (registration, submission) may leave the receiver's
        token open.
        """
        meant_for = envelope.to_token
        if self.token and meant_for != self.token and not (introduces and meant_for == UNKNOWN_TOKEN):
            if not isinstance(envelope.payload, Fenced):
                self.send(effects, envelope.sender, Fenced(self.address, self.token), envelope.sender_token)
            return False
        if envelope.sender_token and envelope.sender_token < self.known_token(envelope.sender):
            if not isinstance(envelope.payload, Fenced):
                fenced = Fenced(envelope.sender, self.known_token(envelope.sender))
                self.send(effects, envelope.sender, fenced, envelope.sender_token)
            return False
        return True

    def deposed(self, envelope: Envelope) -> str | None:
        """Why this machine must end: somebody knows a newer leader at its own address."""
        message = envelope.payload
        if isinstance(message, Fenced) and message.address == self.address and message.current > self.token > 0:
            return f"a newer leader has taken over {self.address} (token {message.current}, this one has {self.token})"
        return None
