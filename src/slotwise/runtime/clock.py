"""Time and ids as production has them. Machines get both as arguments (design decision 1)."""

from __future__ import annotations

import secrets
import time


def monotonic() -> float:
    """Seconds that only ever rise; what every machine's ``now`` is (B: F-09)."""
    return time.monotonic()


def unix_time() -> float:
    """Wall-clock seconds, for people and logs only."""
    return time.time()


class RandomIds:
    """Ids and secrets from the operating system's randomness."""

    def new_id(self, prefix: str) -> str:
        """``prefix`` and eight random hexadecimal digits."""
        return f"{prefix}-{secrets.token_hex(4)}"

    def new_secret(self) -> str:
        """256 bits in hexadecimal."""
        return secrets.token_hex(32)
