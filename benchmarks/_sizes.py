"""The clusters that benchmarks make up: sizes of workers and slots, and ids."""

from __future__ import annotations

from slotwise.model.resources import MIB, ResourceProfile

Size = tuple[int, int]
"""(milli-cores, MiB)."""

WORKER: Size = (16_000, 65_536)
DEFAULT: Size = (1000, 4096)
SIX: list[Size] = [(1000, 4096), (500, 2048), (2000, 8192), (4000, 8192), (1000, 16_384), (250, 1024)]


def profile(size: Size) -> ResourceProfile:
    """A size as a profile."""
    return ResourceProfile(size[0], size[1] * MIB)


def sixty_four() -> list[Size]:
    """64 different sizes that mix CPU and memory differently."""
    return [
        (cpu, memory * 1024)
        for cpu in (250, 500, 750, 1000, 1500, 2000, 3000, 4000)
        for memory in (1, 2, 3, 4, 6, 8, 12, 16)
    ]


class Ids:
    """Ids that count up."""

    def __init__(self) -> None:
        self.last = 0

    def new_id(self, prefix: str) -> str:
        """The next one."""
        self.last += 1
        return f"{prefix}-{self.last:012d}"

    def new_secret(self) -> str:
        """Not used here."""
        return "0" * 32
