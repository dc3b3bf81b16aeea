"""A real master behind a real port, in a thread of its own, and jobs in every state for it to show. No Spark."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from slotwise.dispatcher.tokens import Role
from slotwise.master import Master, MasterOptions
from slotwise.model.ids import JobId
from slotwise.simulation.spark_model import BEHAVIOURS, Behaviour
from slotwise.simulation.world import World
from tests.unit.test_pipeline_jobs import LARGE, project, submit, world_of
from tests.unit.worlds import spec

TOKEN = "c" * 64
BEHAVIOURS["/served/long.py"] = Behaviour(seconds=3000)
BEHAVIOURS["/served/fails.py"] = Behaviour(seconds=5, exit_code=3)
BEHAVIOURS["/served/fine.py"] = Behaviour(seconds=5)

Result = TypeVar("Result")


def wait_for(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """Wait until ``condition`` gives something true, and return it."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)
    return found


class Served:
    """The running master. ``call`` and ``run`` act in its event loop, where alone its parts may be touched."""

    def __init__(self, master: Master, loop: asyncio.AbstractEventLoop) -> None:
        self.master = master
        self.loop = loop

    @property
    def url(self) -> str:
        return self.master.url

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def call(self, do: Callable[[], Result]) -> Result:
        done: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def act() -> None:
            try:
                done.set_result(do())
            except BaseException as error:
                done.set_exception(error)

        self.loop.call_soon_threadsafe(act)
        return done.result(30)

    def submit(self, **changes: Any) -> JobId:
        return self.run(self.master.submit(spec(**changes)))

    def token(self, name: str, role: Role) -> str:
        return self.call(lambda: self.master.auth.tokens.create(name, role)[0])

    def client(self, token: str | None = TOKEN, **options: Any) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=30, **options)

    def show(self, world: World) -> None:
        """Have the master show the machines of a simulated cluster, as they stand."""

        def act() -> None:
            self.master.dispatcher.jobs.update(world.dispatcher.jobs)
            self.master.job_masters.update({job: world.jm(job) for job in world.dispatcher.jobs if _lives(world, job)})
            self.master.resource_manager = world.rm
            self.master.events.add(event for _, event in world.events)

        self.call(act)


def _lives(world: World, job: JobId) -> bool:
    return not world.dispatcher.jobs[job].released


@contextlib.contextmanager
def served(directory: Path, prepare: Callable[[Master], None] | None = None, **options: Any) -> Iterator[Served]:
    """Serve a master in ``directory``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    master = Master(MasterOptions(directory=directory, token=TOKEN, **options))
    if prepare is not None:
        prepare(master)
    made = Served(master, loop)
    made.run(master.start())
    try:
        yield made
    finally:
        made.run(master.close(leave=True))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def busy_world() -> tuple[World, dict[str, JobId]]:
    """A cluster with a running application, a running pipeline, one that waits, and ended jobs of each kind."""
    world = world_of(LARGE)
    jobs = {
        "finished": world.submit(spec(program="/served/fine.py", name="fine")),
        "failed": world.submit(spec(program="/served/fails.py", name="fails")),
        "canceled": world.submit(spec(program="/served/long.py", name="cancelled")),
    }
    world.run(1)
    world.cancel(jobs["canceled"])
    world.run_until(lambda: all(world.dispatcher.jobs[job].released for job in jobs.values()), 600)
    path, _ = project({"first": (), "second": ("first",)}, {}, region_s=3000)
    jobs["pipeline"] = submit(world, path, name="shop")
    jobs["running"] = world.submit(
        spec(program="/served/long.py", name="long", conf={"spark.hadoop.fs.s3a.secret.key": "hunter2"})
    )
    registered = world.jm(jobs["running"]).executors.live
    world.run_until(lambda: sum(executor.registered for executor in registered.values()) == 2, 600)
    world.run(120)
    many = spec(program="/served/long.py", name="waits", initial_executors=500, min_executors=500)
    jobs["waiting"] = world.submit(many)
    world.run(5)
    return world, jobs
