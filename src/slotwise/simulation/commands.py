"""The commands of ``python -m slotwise.simulation``, once their arguments are parsed."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait

import msgspec

from slotwise.simulation.planted import PLANTED
from slotwise.simulation.run import simulate
from slotwise.simulation.scenario import Scenario, draw
from slotwise.simulation.shrink import Cut, reduced, shrink

_CHUNK = 10
_STORIES = 3


class Verdict(msgspec.Struct, frozen=True):
    """How a seed went. ``text`` is empty when no rule was violated."""

    seed: int
    steps: int
    rule: str = ""
    text: str = ""


def _try(seed: int) -> Verdict:
    outcome = simulate(draw(seed))
    steps = outcome.cluster.engine.steps
    if outcome.violation is None:
        return Verdict(seed, steps)
    return Verdict(seed, steps, outcome.violation.rule, outcome.violation.text)


def _try_all(seeds: range) -> list[Verdict]:
    return [_try(seed) for seed in seeds]


def _verdicts(seeds: range, jobs: int) -> Iterator[Verdict]:
    """In the order in which they are done."""
    if jobs <= 1:
        yield from map(_try, seeds)
        return
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    # fork: the children have the planted bug, if there is one.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        waiting: set[Future[list[Verdict]]] = set()
        try:
            while chunks or waiting:
                while chunks and len(waiting) < 2 * jobs:
                    waiting.add(pool.submit(_try_all, chunks.pop(0)))
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _command(command: str, seed: int, cut: Cut, planted: str | None) -> str:
    parts = ["python -m slotwise.simulation", command, str(seed), cut.arguments()]
    if planted:
        parts.append(f"--planted {planted}")
    return " ".join(part for part in parts if part)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------------------------- run


def run(options: argparse.Namespace) -> int:
    """Many seeds."""
    seeds = range(options.first, options.first + options.seeds)
    began, told, steps, done = time.perf_counter(), time.perf_counter(), 0, 0
    bad: list[Verdict] = []
    interrupted = False
    try:
        for verdict in _verdicts(seeds, options.jobs):
            done += 1
            steps += verdict.steps
            if verdict.rule:
                bad.append(verdict)
                print(f"seed {verdict.seed} violates {verdict.rule}: {verdict.text}")
                print(f"  replay: {_command('replay', verdict.seed, Cut(), options.planted)}", flush=True)
                if not options.quiet and len(bad) <= _STORIES:
                    _print_story(reduced(draw(verdict.seed), Cut()), 40, [])
                if options.stop:
                    break
            if not options.quiet and time.perf_counter() - told > 10:
                told = time.perf_counter()
                rate = 60 * done / (told - began)
                _tell(f"{done} of {len(seeds)} seeds, {rate:.0f} a minute, {len(bad)} violation(s)")
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.perf_counter() - began
    rate = 60 * done / seconds if seconds else 0.0
    print(
        f"{done} seeds in {seconds:.1f} s ({rate:.0f} a minute with {options.jobs} process(es), {steps} steps): "
        f"{len(bad)} violation(s)"
    )
    for rule in sorted({verdict.rule for verdict in bad}):
        failing = sorted(verdict.seed for verdict in bad if verdict.rule == rule)
        shown = ", ".join(str(seed) for seed in failing[:20]) + (", …" if len(failing) > 20 else "")
        print(f"  {rule}: {len(failing)} ({shown})")
    return 130 if interrupted else int(bool(bad))


def _print_story(scenario: Scenario, lines: int, about: list[str]) -> int:
    outcome = simulate(scenario)
    if about:
        for line in outcome.cluster.log.story(about, lines):
            print(line)
    if outcome.violation is None:
        return 0
    if not about:
        for line in outcome.story(lines):
            print("  " + line)
    print(f"  seed {scenario.seed}, {outcome.cluster.engine.now:.3f} s: {outcome.violation}")
    return 1


# ----------------------------------------------------------------------------------------------- one seed


def _scenario(options: argparse.Namespace) -> tuple[Scenario, Cut]:
    cut = Cut(tuple(label for label in options.without.split(",") if label), options.until)
    try:
        return reduced(draw(options.seed), cut), cut
    except ValueError as error:
        _tell(str(error))
        raise SystemExit(2) from None


def replay(options: argparse.Namespace) -> int:
    """One seed, with its story or its whole log."""
    scenario, _ = _scenario(options)
    if options.log:
        outcome = simulate(scenario)
        for line in outcome.cluster.log.lines():
            print(line)
        print(outcome.violation or "no violation")
        return int(outcome.violation is not None)
    print(f"seed {scenario.seed}: {len(scenario.hosts) or scenario.rm.sizing.max_workers} workers", end="")
    print(f" ({'standalone' if scenario.hosts else 'provisioned'}), {len(scenario.jobs)} jobs,", end="")
    print(f" {len(scenario.faults)} faults in {scenario.faults_s:g} s")
    failed = _print_story(scenario, options.lines, options.about)
    if not failed:
        print("no violation")
    return failed


def shrink_seed(options: argparse.Namespace) -> int:
    """A shorter scenario of a failing seed."""
    scenario, _ = _scenario(options)
    outcome = simulate(scenario)
    if outcome.violation is None:
        print(f"seed {options.seed} violates nothing")
        return 0
    cut = shrink(scenario, outcome.violation.rule, _tell)
    whole = Cut((*scenario.left_out, *cut.without), cut.until_s if cut.until_s is not None else options.until)
    print(f"replay: {_command('replay', options.seed, whole, options.planted)}")
    return _print_story(reduced(draw(options.seed), whole), 200, [])


# ----------------------------------------------------------------------------------------------- planted bugs


def planted(options: argparse.Namespace) -> int:
    """Each bug in a process of its own."""
    names = options.names or list(PLANTED)
    if not options.names and not options.list:
        names = [name for name in names if not PLANTED[name].unseen]
    if options.list:
        for name in names:
            print(f"{name:<32} {PLANTED[name].module.removeprefix('slotwise.')}: {PLANTED[name].means}")
            if PLANTED[name].unseen:
                print(f"{'':<32} not looked for: {PLANTED[name].unseen}")
        return 0
    began = time.perf_counter()
    missed = []
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [(name, pool.submit(_find, name, options.first, options.seeds)) for name in names]
        try:
            for name, future in runs:
                code, seconds, out = future.result()
                first = next((line for line in out.splitlines() if line.startswith("seed ")), "")
                if code == 1 and first:
                    print(f"found   {name:<32} {seconds:6.1f} s  {first[:140]}", flush=True)
                else:
                    missed.append(name)
                    last = out.strip().splitlines()[-1] if out.strip() else f"exit code {code}"
                    print(f"MISSED  {name:<32} {seconds:6.1f} s  {last}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print(f"{len(names) - len(missed)} of {len(names)} planted bugs found in {time.perf_counter() - began:.0f} s")
    if not options.names:
        print(f"{len(PLANTED) - len(names)} others that the protocol makes good, or that are rare: --list says why")
    return int(bool(missed))


def _find(name: str, first: int, seeds: int) -> tuple[int, float, str]:
    began = time.perf_counter()
    argv = [sys.executable, "-m", "slotwise.simulation", "run", "--stop", "--quiet", "--planted", name]
    argv += ["--first", str(first), "--seeds", str(seeds)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    return done.returncode, time.perf_counter() - began, done.stdout + done.stderr


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": run,
    "replay": replay,
    "shrink": shrink_seed,
    "planted": planted,
}
