"""Tables on standard output: aligned, in colour on terminals that show it (``NO_COLOR`` is heeded), and no wider than
the terminal. Where there is no terminal nothing is cut.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_NUMBER = re.compile(r"^\d+([.,]\d+)?(/\d+(\.\d+)?)?( ?(s|ms|min|h|d|%|B|[KMGT]iB))?$|^–$|^$")
_GAP = 2
_LEAST = 4
_STYLES = {
    "RUNNING": "green",
    "FINISHED": "green dim",
    "COMPLETED": "green",
    "FAILED": "red",
    "FAILING": "red",
    "RESTARTING": "yellow",
    "RECONCILING": "yellow",
    "WAITING_FOR_RESOURCES": "yellow",
    "CANCELED": "dim",
    "CANCELLING": "dim",
}
_UNLIMITED = 100_000


def plain(value: object) -> str:
    """``value`` as text that cannot move a terminal's cursor: names come from others."""
    return "".join(c if c.isprintable() else "?" for c in str(value))


def console() -> Console:
    """Standard output as rich knows it; as wide as its lines where it is no terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else _UNLIMITED)


def build_table(headers: Sequence[str], rows: Iterable[Sequence[object]], width: int = _UNLIMITED) -> Table:
    """A table without lines, ``width`` columns wide at the most: the widest texts are cut. The first column, which has
    the ids, is not; nor are numbers, which stand right.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    text = [[plain(cell) for cell in row] for row in rows]
    columns = [[row[index] for row in text] for index in range(len(headers))]
    numbers = [index > 0 and bool(cells) and all(map(_NUMBER.match, cells)) for index, cells in enumerate(columns)]
    widths = [max(map(cell_len, [header, *cells])) for header, cells in zip(headers, columns, strict=True)]
    fit(widths, [index for index, number in enumerate(numbers) if index and not number], width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False)
    for header, number, cells in zip(headers, numbers, widths, strict=True):
        justify: Literal["right", "left"] = "right" if number else "left"
        table.add_column(header, justify=justify, no_wrap=True, overflow="ellipsis", width=cells)
    for row in text:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table


def fit(widths: list[int], may_shrink: Sequence[int], width: int) -> None:
    """Make the widest of the columns that may shrink narrower, until all of them and the gaps between are ``width``."""
    over = sum(widths) + _GAP * (len(widths) - 1) - width
    while over > 0:
        widest = max(may_shrink, key=lambda index: widths[index], default=None)
        if widest is None or widths[widest] <= _LEAST:
            return
        widths[widest] -= 1
        over -= 1


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print such a table."""
    screen = console()
    with screen.capture() as captured:
        screen.print(build_table(headers, rows, screen.width))
    for line in captured.get().splitlines():
        print(line.rstrip())
