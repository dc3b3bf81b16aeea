"""What commands show: a job's program output passed through, one status line on terminals, plain lines elsewhere."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from slotwise.runtime.events import Happened

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Screen:
    """Standard output belongs to the program; everything of ours goes to standard error.

    On a terminal a status line stays below the program's output and is redrawn; elsewhere only :meth:`say` prints.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._live = sys.stderr.isatty() and not quiet
        self._quiet = quiet
        self._drawn = False
        self._at_line_start = True
        self._frame = 0

    def say(self, text: str) -> None:
        """One line of ours."""
        if not self._quiet:
            self._clear()
            if not self._at_line_start and sys.stderr.isatty():
                sys.stderr.write("\n")
                self._at_line_start = True
            sys.stderr.write(f"slotwise: {text}\n")
            sys.stderr.flush()

    def status(self, text: str) -> None:
        """Replace the status line (terminals only)."""
        if not self._live or not self._at_line_start:
            return
        self._clear()
        self._frame += 1
        width = shutil.get_terminal_size().columns
        line = f"{_SPINNER[self._frame % len(_SPINNER)]} {text}"
        sys.stderr.write(line[: width - 1])
        sys.stderr.flush()
        self._drawn = True

    def passthrough(self, data: bytes, *, error: bool) -> None:
        """Output of the program, byte for byte."""
        self._clear()
        stream = sys.stderr.buffer if error else sys.stdout.buffer
        stream.write(data)
        stream.flush()
        self._at_line_start = data.endswith(b"\n")

    def end(self) -> None:
        """Take the status line away."""
        self._clear()

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


def job_line(details: dict[str, Any]) -> str:
    """A job's present in one line: phase, slots, executors, stages."""
    parts = [details["phase"].lower().replace("_", " ")]
    declared = sum(item["count"] for item in details.get("declared", []))
    parts.append(f"slots: {declared} declared, {len(details.get('held', []))} held")
    executors = details.get("executors", {})
    if executors.get("wanted"):
        parts.append(f"executors {executors['registered']}/{executors['wanted']}")
    for missing in details.get("missing", [])[:1]:
        parts.append(missing["detail"])
    for stage in details.get("stages", [])[:2]:
        parts.append(f"stage {stage['id']} {stage['done']}/{stage['tasks']}")
    if details.get("tasks-done"):
        parts.append(f"{details['tasks-done']} tasks done")
    return " · ".join(parts)


def event_line(event: Happened) -> str | None:
    """An event as a line for a log, or None for those that say too little."""
    fields = event.fields
    match event.name:
        case "declared":
            return f"declared {fields['requirements'] or 'nothing'}"
        case "worker-requested":
            return f"starting worker {event.worker} ({fields['total']})"
        case "worker-registered":
            return f"worker {event.worker} is there ({fields['total']})"
        case "worker-lost":
            return f"worker {event.worker} is lost: {fields['reason']}"
        case "acquired":
            return f"slot acquired on {event.worker}: {fields['profile']}"
        case "executor-registered":
            return f"executor {fields['executor']} joined"
        case "executor-ended" if not fields["asked"]:
            return f"executor {fields['executor']} ended with code {fields['exit_code']}"
        case "slot-lost":
            return f"slot lost on {event.worker}: {fields['reason']}"
        case "job-graph":
            return f"the pipeline has {len(json.loads(str(fields['plan']))['nodes'])} dataset(s) to update"
        case "region":
            return _region_line(fields)
        case "shortage":
            return str(fields["text"])
        case "job-state":
            reason = f": {fields['reason']}" if fields.get("reason") else ""
            return f"job is {str(fields['state']).lower().replace('_', ' ')}{reason}"
        case _:
            return None


def _region_line(fields: Mapping[str, Any]) -> str | None:
    reason = f": {fields['reason']}" if fields.get("reason") else ""
    match fields["state"]:
        case "RUNNING":
            again = f", attempt {fields['attempt']}" if fields["attempt"] > 1 else ""
            return f"{fields['region']} runs with {fields['parallelism']} executor(s){again}"
        case "SCHEDULED" if reason:
            return f"{fields['region']} will run again{reason}"
        case "FINISHED" | "CANCELED" | "FAILED":
            return f"{fields['region']} {str(fields['state']).lower()}{reason}"
        case _:
            return None
