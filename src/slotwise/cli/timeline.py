"""What a cluster did for one job, drawn as text: a bar for each worker and each slot over a common axis of seconds.

:func:`timeline` is a pure function from events to lines. It shows what the proposals are about: when a slot was
declared, when it was there, when a process used it, and when it was given back (FLIP-138, FLIP-56).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.runtime.events import Happened

MIN_WIDTH = 60
"""Columns below which nothing readable fits; lines are drawn this wide for narrower terminals."""

_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)
_MOST_NOTES = 12
_LEAST_BAR = 24
_REQUIREMENT = re.compile(r"(\d+) × \(([^)]*)\)")

_ASKED, _THERE, _HELD, _STARTING, _RUNNING, _LOST = "·", "─", "░", "▒", "█", "✗"
_LEGEND = {
    _ASKED: "asked for, not there yet",
    _THERE: "worker there",
    _HELD: "slot held, no process in it",
    _STARTING: "process starting",
    _RUNNING: "process running",
    _LOST: "lost",
}
_COLOURS = {_ASKED: "2", _THERE: "2", _HELD: "33", _STARTING: "36", _RUNNING: "32", _LOST: "31"}


@dataclass
class _Bar:
    """One row: what was the case from when to when, in seconds since the submission."""

    name: str
    size: str
    phases: list[tuple[float, str]] = field(default_factory=list)
    ended_s: float | None = None
    lost: bool = False
    uses: list[str] = field(default_factory=list)

    def now(self, at_s: float, glyph: str) -> None:
        self.phases.append((at_s, glyph))

    def end(self, at_s: float, lost: bool = False) -> None:
        if self.ended_s is None:
            self.ended_s, self.lost = at_s, lost

    @property
    def label(self) -> str:
        """A slot is named by what ran in it: 'driver', 'executor 1', 'executor 1, 4'."""
        if self.name:
            return self.name
        executors = [use.removeprefix("executor-") for use in self.uses if use.startswith("executor-")]
        names = ["driver"] if len(executors) < len(self.uses) else []
        if executors:
            names.append(f"executor {', '.join(executors)}")
        return f"  {', '.join(names) or 'unused'}"

    def draw(self, seconds_per_column: float, end_s: float, columns: int) -> str:
        """The bar itself, ``columns`` wide; a phase shorter than half a column may vanish, a loss never does."""
        cells = [" "] * columns
        ends = [at for at, _ in self.phases[1:]] + [end_s if self.ended_s is None else self.ended_s]
        for (start, glyph), end in zip(self.phases, ends, strict=True):
            first, last = round(start / seconds_per_column), round(end / seconds_per_column)
            cells[first:last] = glyph * (min(last, columns) - first)
        if self.lost and self.ended_s is not None:
            cells[min(columns - 1, round(self.ended_s / seconds_per_column))] = _LOST
        return "".join(cells)


class _Story:
    """The events of a job and its cluster, put together into bars."""

    def __init__(self, job: JobId, start_unix_s: float) -> None:
        self.job = job
        self.end_s = 0.0
        self.workers: dict[WorkerId, _Bar] = {}
        self.slots: dict[AllocationId, _Bar] = {}
        self.worker_of: dict[AllocationId, WorkerId] = {}
        self.unmet: list[_Bar] = []
        self.notes: list[tuple[float, str]] = []
        self._start_unix_s = start_unix_s
        self._over = False
        self._held: dict[AllocationId, str] = {}
        self._declared: dict[str, int] = {}
        self._open: dict[str, list[float]] = {}
        self._process: dict[str, AllocationId] = {}
        self._driver: AllocationId | None = None

    def add(self, event: Happened) -> None:
        """Take in the next event."""
        at = max(0.0, event.unix_s - self._start_unix_s)
        if event.job == self.job:
            self.end_s = max(self.end_s, at)
            self._add_of_job(event, at)
        elif event.job is None and event.worker is not None and not (self._over and not self._held):
            # What becomes of the workers after the job is no part of its story: an embedded cluster ends with it.
            self._add_of_worker(event, event.worker, at)

    def _add_of_worker(self, event: Happened, worker: WorkerId, at: float) -> None:
        bar = self.workers.get(worker)
        if event.name in ("worker-requested", "worker-registered"):
            if bar is None:
                bar = self.workers[worker] = _Bar(str(worker), str(event.fields.get("total", "")))
            if bar.ended_s is None:
                bar.now(at, _ASKED if event.name == "worker-requested" else _THERE)
        elif bar is not None and event.name in ("worker-lost", "worker-failed"):
            bar.end(at, lost=True)
            self.notes.append((at, f"{event.name.replace('-', ' ')}: {worker}: {event.fields.get('reason')}"))
        elif bar is not None and event.name in ("worker-released", "worker-cancelled"):
            bar.end(at)

    def _add_of_job(self, event: Happened, at: float) -> None:
        fields = event.fields
        slot = self.slots.get(event.allocation) if event.allocation is not None else None
        match event.name:
            case "declared":
                text = str(fields.get("requirements") or "")
                self._declared = {profile: int(count) for count, profile in _REQUIREMENT.findall(text)}
                self.notes.append((at, f"declared {text or 'nothing'}"))
            case "acquired" if event.allocation is not None and event.worker is not None:
                self._acquired(event.allocation, event.worker, str(fields.get("profile", "")), at)
            case "deployed" if event.allocation is not None and slot is not None:
                self._deployed(event.allocation, slot, str(fields.get("process", "")), at)
            case "executor-registered":
                allocation = self._process.get(f"executor-{fields.get('executor')}")
                if allocation in self._held:
                    self.slots[allocation].now(at, _RUNNING)
            case "executor-ended" if slot is not None:
                if event.allocation in self._held:
                    slot.now(at, _HELD)
                if not fields.get("asked"):
                    self.notes.append(
                        (at, f"executor {fields.get('executor')} ended with code {fields.get('exit_code')}")
                    )
            case "released" | "slot-lost" if event.allocation is not None and slot is not None:
                self._held.pop(event.allocation, None)
                slot.end(at, lost=event.name == "slot-lost")
                if event.name == "slot-lost":
                    self.notes.append((at, f"slot lost on {event.worker}: {fields.get('reason')}"))
            case "first-task":
                # The driver's own clock says when; the event came with the next report.
                unix_s = fields.get("unix_s")
                since = at if not isinstance(unix_s, int | float) else max(0.0, unix_s - self._start_unix_s)
                self.notes.append((since, "first task started"))
            case "job-state":
                self._state(str(fields.get("state")), str(fields.get("reason") or ""), at)
        self._settle(at)

    def _acquired(self, allocation: AllocationId, worker: WorkerId, profile: str, at: float) -> None:
        waiting = self._open.get(profile)
        bar = self.slots[allocation] = _Bar("", profile)
        bar.now(waiting.pop(0) if waiting else at, _ASKED)
        bar.now(at, _HELD)
        self._held[allocation] = profile
        self.worker_of[allocation] = worker

    def _deployed(self, allocation: AllocationId, slot: _Bar, process: str, at: float) -> None:
        slot.uses.append(process)
        slot.now(at, _STARTING)
        self._process[process] = allocation
        if process.startswith("driver"):
            self._driver = allocation

    def _state(self, state: str, reason: str, at: float) -> None:
        words = f"job is {state.lower().replace('_', ' ')}"
        self._over = final = state in ("FINISHED", "FAILED", "CANCELED")
        if final or state == "RESTARTING":
            self.notes.append((at, f"{words}: {reason}" if reason else words))
        if state == "RUNNING" and self._driver in self._held:
            self.slots[self._driver].now(at, _RUNNING)
        elif (final or state == "RESTARTING") and self._driver in self._held:
            self.slots[self._driver].now(at, _HELD)
        if final or state == "CANCELLING":
            # Its slots are given back before the empty declaration arrives: they are not missing.
            self._declared = {}

    def _settle(self, at: float) -> None:
        """Keep one open wish for each slot that is declared and not held; a wish withdrawn was never met."""
        held = list(self._held.values())
        for profile in self._declared.keys() | self._open.keys():
            wishes = self._open.setdefault(profile, [])
            lacking = max(0, self._declared.get(profile, 0) - held.count(profile))
            wishes += [at] * (lacking - len(wishes))
            while len(wishes) > lacking:
                bar = _Bar("  never came", profile, [(wishes.pop(), _ASKED)])
                bar.end(at)
                self.unmet.append(bar)

    def rows(self) -> list[_Bar]:
        """Each worker with its slots below it, then what was declared and never came."""
        found: list[_Bar] = []
        for worker, bar in self.workers.items():
            found.append(bar)
            found += [slot for allocation, slot in self.slots.items() if self.worker_of[allocation] == worker]
        found += [slot for allocation, slot in self.slots.items() if self.worker_of[allocation] not in self.workers]
        return found + sorted(self.unmet, key=lambda bar: bar.phases[0][0])


def timeline(events: Sequence[Happened], width: int = 100, *, colour: bool = False) -> list[str]:
    """The lines of a drawing of what happened to the first job that was submitted in ``events`` (in their order).

    ``width``: columns of the widest line, at least :data:`MIN_WIDTH`. ``colour``: with ANSI colours. Empty without a
    submission among the events.
    """
    submitted = next((event for event in events if event.name == "submitted" and event.job is not None), None)
    if submitted is None or submitted.job is None:
        return []
    story = _Story(submitted.job, submitted.unix_s)
    for event in events:
        story.add(event)
    width = max(MIN_WIDTH, width)
    rows = story.rows()
    end_s = max(story.end_s, 0.1)

    labels = [row.label for row in rows]
    name_width = min(max(map(len, labels), default=0), width - _LEAST_BAR - 2)
    size_width = max((len(row.size) for row in rows), default=0)
    if width - name_width - size_width - 4 < _LEAST_BAR:
        size_width = 0
    head = name_width + 2 + (size_width + 2 if size_width else 0)
    columns = width - head
    scale = end_s / columns

    lines = [" " * head + line for line in _axis(end_s, columns)]
    used: set[str] = set()
    for row, label in zip(rows, labels, strict=True):
        size = f"{row.size:<{size_width}}  " if size_width else ""
        cells = row.draw(scale, end_s, columns)
        used.update(cells)
        lines.append(f"{label[:name_width]:<{name_width}}  {size}{_paint(cells.rstrip(), colour)}")
    lines.append("")
    lines += _legend([glyph for glyph in _LEGEND if glyph in used], width, colour)
    lines.append("")
    return [line.rstrip() for line in lines + _notes(story.notes, width)]


def _axis(end_s: float, columns: int) -> list[str]:
    """Ticks at round numbers of seconds, and their numbers above them."""
    step = next((step for step in _STEPS_S if end_s / step * 7 <= columns), end_s)
    numbers, rule = [" "] * columns, ["─"] * columns
    for tick in range(int(end_s / step) + 1):
        column = round(tick * step / end_s * columns)
        text = f"{tick * step:g} s" if tick == 0 else f"{tick * step:g}"
        if column + len(text) <= columns:
            numbers[column : column + len(text)] = text
            rule[column] = "┬" if tick else "┌"
    return ["".join(numbers), "".join(rule)]


def _paint(cells: str, colour: bool) -> str:
    if not colour:
        return cells
    runs = ((glyph, "".join(run)) for glyph, run in groupby(cells))
    return "".join(f"\x1b[{_COLOURS[glyph]}m{run}\x1b[0m" if glyph in _COLOURS else run for glyph, run in runs)


def _legend(glyphs: list[str], width: int, colour: bool) -> list[str]:
    lines: list[list[str]] = [[]]
    for glyph in glyphs:
        if sum(len(_LEGEND[other]) + 5 for other in [*lines[-1], glyph]) > width + 3:
            lines.append([])
        lines[-1].append(glyph)
    return ["   ".join(f"{_paint(glyph, colour)} {_LEGEND[glyph]}" for glyph in line) for line in lines]


def _notes(notes: list[tuple[float, str]], width: int) -> list[str]:
    """The turning points in words, the first and the last of them where they are many."""
    ordered = sorted(notes, key=lambda note: note[0])
    lines = [f"{at_s:7.1f} s  {text}" for at_s, text in ordered]
    if len(lines) > _MOST_NOTES:
        half = _MOST_NOTES // 2
        lines = [*lines[:half], f"          … {len(lines) - 2 * half} more", *lines[-half:]]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
