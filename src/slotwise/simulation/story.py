"""The log of a run, and the story of the objects in it that a violation is about.

Entries are kept as they are and put into words only when somebody reads them: most runs are never read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from slotwise.protocol.effects import Event
from slotwise.protocol.messages import Envelope

_LIMIT = 400
_LEFT_OUT = ("spec", "secret", "launch", "log_tail", "pid", "ticket", "size", "default_profile")
_NOTHING = (None, "", (), False)


class Violation(Exception):
    """The cluster did what it never may. ``rule`` names the checker; ``involved`` the ids of what it is about."""

    def __init__(self, rule: str, text: str, *involved: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text
        self.involved = involved


class Log:
    """Everything that happened, in order. ``add`` must be given values that do not change afterwards."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, str, tuple[Any, ...]]] = []

    def add(self, now: float, what: str, *objects: Any) -> None:
        """Note something."""
        self._entries.append((now, what, objects))

    def lines(self) -> Iterator[str]:
        """The log in words."""
        for now, what, objects in self._entries:
            yield f"{now:10.4f} {what:<12} {' '.join(_words(thing) for thing in objects)}"

    def story(self, involved: Iterable[str], limit: int = _LIMIT) -> list[str]:
        """The last lines about any of these ids, and all faults between them."""
        names = set(involved)
        found = []
        for line in self.lines():
            if " fault " in line[:20] or " master " in line[:20] or any(_mentions(line, name) for name in names):
                found.append(line)
        left_out = len(found) - limit
        return ([f"… {left_out} earlier lines left out"] if left_out > 0 else []) + found[-limit:]


def _mentions(line: str, name: str) -> bool:
    """Whether ``name`` is there as a whole: ``w1`` is not in ``w12``."""
    at = line.find(name)
    while at >= 0:
        end = at + len(name)
        if (at == 0 or not _is_word(line[at - 1])) and (end == len(line) or not _is_word(line[end])):
            return True
        at = line.find(name, end)
    return False


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "-"


def _words(thing: Any) -> str:
    if isinstance(thing, Envelope):
        tokens = f"{thing.sender}#{thing.sender_token} > {thing.to}#{thing.to_token}"
        return f"{tokens} [{thing.id}] {_words(thing.payload)}"
    if isinstance(thing, Event):
        named = [str(value) for value in (thing.job, thing.worker, thing.allocation) if value is not None]
        fields = [f"{key}={value}" for key, value in thing.fields.items()]
        return " ".join([thing.name, *named, *fields])
    if isinstance(thing, msgspec.Struct):
        values = ", ".join(
            f"{name}={_value(getattr(thing, name))}"
            for name in thing.__struct_fields__
            if name not in _LEFT_OUT and getattr(thing, name) not in _NOTHING
        )
        return f"{type(thing).__name__}({values})"
    return str(thing)


def _value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, msgspec.Struct):
        return str(value) if type(value).__str__ is not msgspec.Struct.__str__ else _words(value)
    return str(value)
