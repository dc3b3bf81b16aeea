"""The planted bugs: single changes to the protocol, each of which the simulator must find."""

from __future__ import annotations

from slotwise.simulation.planting import PlantedBug

_BUGS: tuple[PlantedBug, ...] = ()

PLANTED = {bug.name: bug for bug in _BUGS}
