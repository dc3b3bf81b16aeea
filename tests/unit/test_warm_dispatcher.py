"""The Dispatcher with warm applications: how it begins and ends them, and how a job takes one."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from slotwise.dispatcher.machine import Dispatcher, DispatcherConfig
from slotwise.dispatcher.warm_applications import WarmApplicationPolicy, kind_of
from slotwise.model.ids import DISPATCHER, UNKNOWN_TOKEN, Address, JobId, LeaderToken, job_master_address
from slotwise.model.job import JobResult, JobSpec, JobState
from slotwise.model.progress import JobProgress, RecoveredJob
from slotwise.protocol.effects import Effects, JobMasterExited, PersistJob, StartJobMaster, StopJobMaster
from slotwise.protocol.messages import (
    CancelJob,
    Envelope,
    JobAccepted,
    JobStatus,
    JobStatusAcknowledged,
    Message,
    ProgramTaken,
    RunProgram,
    SubmitJob,
)
from slotwise.simulation.cluster import CountingIds
from tests.unit.worlds import spec

M = TypeVar("M")
CLIENT = Address("client:1")
TOKEN = LeaderToken(1_000_000)


class Desk:
    """A Dispatcher, what it is told, and all that it wants done."""

    def __init__(self, *recovered: RecoveredJob, **policy: Any) -> None:
        warm = WarmApplicationPolicy(**({"most": 1} | policy))
        self.machine = Dispatcher(DispatcherConfig(warm=warm), TOKEN, CountingIds(), 0.0, recovered)
        self.now = 0.0
        self.tokens: dict[JobId, LeaderToken] = {}
        self.keys = 0

    def note(self, effects: Effects) -> Effects:
        for change in effects.job_masters:
            if isinstance(change, StartJobMaster):
                self.tokens[change.job] = change.token
        self.machine.check_invariants()
        return effects

    def hear(self, payload: Message, sender: Address = CLIENT, token: int = 0) -> Effects:
        envelope = Envelope(
            1, DISPATCHER, UNKNOWN_TOKEN if sender == CLIENT else TOKEN, sender, LeaderToken(token), payload
        )
        return self.note(self.machine.handle(envelope, self.now))

    def submit(self, job: JobSpec | None = None, key: str | None = None) -> tuple[JobId, Effects]:
        self.keys += 1
        effects = self.hear(SubmitJob(key or f"key-{self.keys}", job or spec()))
        accepted = [sent.payload for sent in effects.send if isinstance(sent.payload, JobAccepted)]
        return accepted[0].job, effects

    def says(self, job: JobId, seq: int, state: JobState = JobState.RUNNING, **more: Any) -> Effects:
        """A word of the job's JobMaster."""
        if state.is_final:
            more.setdefault("result", JobResult(state))
        return self.hear(JobStatus(job, seq, state, **more), job_master_address(job), self.tokens.get(job, TOKEN))

    def taken(self, job: JobId) -> Effects:
        return self.hear(ProgramTaken(job), job_master_address(job), self.tokens[job])

    def exits(self, job: JobId, progress: JobProgress | None = None) -> Effects:
        return self.note(self.machine.handle(JobMasterExited(job, "it crashed", progress), self.now))

    def wait(self, seconds: float) -> Effects:
        """Let time pass; returns all that was wanted done meanwhile."""
        until, all_effects = self.now + seconds, Effects()
        while (due := self.machine.next_timer()) is not None and due <= until:
            self.now = max(self.now, due)
            effects = self.note(self.machine.on_timer(self.now))
            all_effects.send += effects.send
            all_effects.job_masters += effects.job_masters
            all_effects.persist += effects.persist
        self.now = until
        return all_effects

    def warm_one(self) -> JobId:
        """A warm application that waits, after a job that has ended."""
        job, _ = self.submit()
        self.says(job, 1)
        self.says(job, 2, JobState.FINISHED, released=True)
        (begun,) = starts(self.wait(4))
        assert begun.warm
        self.says(begun.job, 7, warm=True, waits=True)
        return begun.job

    def handing_over(self) -> JobId:
        """A job that was given a warm application, which has not said yet that it knows."""
        warm = self.warm_one()
        job, _ = self.submit(spec(program="/mine.py"))
        assert job == warm
        return job


def starts(effects: Effects) -> list[StartJobMaster]:
    return [change for change in effects.job_masters if isinstance(change, StartJobMaster)]


def payloads(effects: Effects, kind_of_message: type[M]) -> list[M]:
    return [sent.payload for sent in effects.send if isinstance(sent.payload, kind_of_message)]


def test_none_is_begun_unless_the_dispatcher_is_told_to_keep_some() -> None:
    desk = Desk(most=0)
    job, _ = desk.submit()
    desk.says(job, 1, JobState.FINISHED, released=True)
    assert starts(desk.wait(100)) == []
    assert desk.machine.next_timer() is None


def test_one_is_begun_for_the_kind_of_the_last_job_under_an_id_of_its_own() -> None:
    desk = Desk()
    job, _ = desk.submit()
    desk.says(job, 1)
    assert starts(desk.wait(2.9)) == []
    effects = desk.wait(5)
    (begun,) = starts(effects)
    assert begun.warm
    assert begun.spec == kind_of(spec())
    assert begun.job != job
    assert begun.job not in desk.machine.jobs
    assert effects.persist == []


@pytest.mark.parametrize("state", [JobState.CREATED, JobState.WAITING_FOR_RESOURCES, JobState.DEPLOYING])
def test_none_is_begun_while_a_job_begins(state: JobState) -> None:
    desk = Desk()
    job, _ = desk.submit()
    if state is not JobState.CREATED:
        desk.says(job, 1, state)
    assert starts(desk.wait(60)) == []
    desk.says(job, 2)
    assert len(starts(desk.wait(1))) == 1


def test_a_submission_takes_one_that_waits_and_has_its_id() -> None:
    desk = Desk()
    warm = desk.warm_one()
    mine = spec(name="mine", program="/mine.py", args=("1",))
    job, effects = desk.submit(mine, "my-key")
    assert job == warm
    assert effects.persist == [PersistJob(job, "my-key", mine)]
    assert payloads(effects, RunProgram) == [RunProgram(job, mine)]
    assert starts(effects) == []
    assert desk.machine.jobs[job].state is JobState.RUNNING
    assert desk.machine.warm.entries == {}


def test_f_06_the_record_of_its_job_comes_before_the_answer_and_before_the_program() -> None:
    # Effects are carried out in this order, each part before the next: nothing may have gone out earlier.
    desk = Desk()
    desk.warm_one()
    _, effects = desk.submit()
    assert [type(record) for record in effects.persist] == [PersistJob]
    assert {type(sent.payload) for sent in effects.send} == {RunProgram, JobAccepted}


def test_f_06_the_same_key_again_is_the_same_job() -> None:
    desk = Desk()
    warm = desk.warm_one()
    job, _ = desk.submit(key="mine")
    again, effects = desk.submit(key="mine")
    assert again == job == warm
    assert (effects.persist, effects.job_masters, payloads(effects, RunProgram)) == ([], [], [])


def test_the_program_is_told_until_it_is_taken() -> None:
    desk = Desk()
    job = desk.handing_over()
    assert len(payloads(desk.wait(6.5), RunProgram)) == 3
    assert desk.machine.jobs[job].handing_over
    desk.taken(job)
    assert not desk.machine.jobs[job].handing_over
    assert payloads(desk.wait(60), RunProgram) == []


def test_ml_what_it_said_before_it_was_taken_and_comes_late_changes_nothing() -> None:
    desk = Desk()
    job = desk.handing_over()
    assert starts(desk.says(job, 6, JobState.DEPLOYING, warm=True)) == []
    assert desk.machine.jobs[job].state is JobState.RUNNING


def test_one_that_is_not_ready_is_not_taken() -> None:
    desk = Desk()
    warm = desk.warm_one()
    desk.says(warm, 8, warm=True, waits=False)
    job, effects = desk.submit()
    assert job != warm
    assert [change.warm for change in starts(effects)] == [False]


def test_one_that_has_ended_is_not_taken() -> None:
    desk = Desk()
    warm = desk.warm_one()
    desk.says(warm, 8, JobState.FAILED, warm=True, waits=True)
    assert desk.submit()[0] != warm


def test_each_is_used_once() -> None:
    desk = Desk()
    warm = desk.warm_one()
    assert desk.submit()[0] == warm
    other, effects = desk.submit()
    assert other != warm
    assert [change.job for change in starts(effects)] == [other]


def test_f_06_one_whose_job_could_not_be_recorded_ends() -> None:
    desk = Desk()
    warm = desk.warm_one()
    job, _ = desk.submit(key="lost")
    desk.machine.forget(job)
    assert job not in desk.machine.jobs
    effects = desk.wait(1)
    assert CancelJob(warm) in payloads(effects, CancelJob)
    assert payloads(effects, RunProgram) == []
    # The same submission again is another job.
    assert desk.submit(key="lost")[0] != warm
    desk.says(warm, 8, JobState.CANCELED, warm=True)
    assert StopJobMaster(warm) in desk.says(warm, 9, JobState.CANCELED, warm=True, released=True).job_masters
    assert warm not in desk.machine.warm.entries


def test_its_words_are_acknowledged_and_its_end_ends_its_job_master() -> None:
    desk = Desk()
    warm = desk.warm_one()
    assert payloads(desk.says(warm, 8, warm=True, waits=True), JobStatusAcknowledged) == [
        JobStatusAcknowledged(warm, 8)
    ]
    effects = desk.says(warm, 9, JobState.FAILED, warm=True, released=True)
    assert effects.job_masters == [StopJobMaster(warm, JobResult(JobState.FAILED))]
    assert (effects.persist, effects.events) == ([], [])
    assert desk.machine.warm.entries == {}


def test_after_one_that_failed_the_next_is_not_begun_at_once() -> None:
    desk = Desk()
    warm = desk.warm_one()
    assert StopJobMaster(warm, JobResult(JobState.FAILED, reason="it crashed")) in desk.exits(warm).job_masters
    assert starts(desk.wait(29)) == []
    assert [change.warm for change in starts(desk.wait(2))] == [True]


def test_f_01_one_that_ends_before_it_knew_of_its_job_leaves_it_to_a_cold_start() -> None:
    desk = Desk()
    job = desk.handing_over()
    effects = desk.says(job, 8, JobState.FAILED, warm=True)
    (cold,) = starts(effects)
    assert (cold.job, cold.warm, cold.progress) == (job, False, None)
    assert cold.spec.program == "/mine.py"
    assert cold.token > TOKEN
    assert not desk.machine.jobs[job].state.is_final
    assert payloads(desk.wait(60), RunProgram) == []
    # Words of the JobMaster that ended are not the new one's.
    desk.says(job, 1, JobState.WAITING_FOR_RESOURCES)
    assert desk.machine.jobs[job].state is JobState.WAITING_FOR_RESOURCES


def test_f_06_a_job_that_ended_is_not_begun_again_when_the_word_that_it_took_its_program_is_lost() -> None:
    desk = Desk()
    job = desk.handing_over()
    effects = desk.says(job, 8, JobState.FINISHED)
    assert starts(effects) == []
    assert desk.machine.jobs[job].state is JobState.FINISHED
    assert payloads(desk.wait(60), RunProgram) == []


def test_f_01_when_its_job_master_fails_while_handing_over_the_job_starts_cold() -> None:
    desk = Desk()
    job = desk.handing_over()
    (cold,) = starts(desk.exits(job))
    assert (cold.job, cold.warm, cold.progress, cold.spec.program) == (job, False, None, "/mine.py")
    assert cold.token > TOKEN
    assert payloads(desk.wait(60), RunProgram) == []
    desk.says(job, 1, JobState.FAILED)
    assert desk.machine.jobs[job].state is JobState.FAILED


def test_f_03_when_its_job_master_fails_later_the_next_one_takes_over_what_is_recorded() -> None:
    desk = Desk()
    job = desk.handing_over()
    desk.taken(job)
    progress = JobProgress(TOKEN, attempt=1, warm=True)
    (again,) = starts(desk.exits(job, progress))
    assert (again.warm, again.progress) == (False, progress)


def test_a_cancel_while_handing_over_goes_to_it_and_then_to_the_cold_start() -> None:
    desk = Desk()
    job = desk.handing_over()
    assert payloads(desk.hear(CancelJob(job)), CancelJob) == [CancelJob(job)]
    effects = desk.says(job, 8, JobState.CANCELED, warm=True)
    (cold,) = starts(effects)
    sent = [envelope for envelope in effects.send if isinstance(envelope.payload, CancelJob)]
    assert [envelope.to_token for envelope in sent] == [cold.token]
    desk.says(job, 1, JobState.CANCELED)
    assert desk.machine.jobs[job].state is JobState.CANCELED


def test_a_cancel_of_one_that_is_nobodys_job_is_refused() -> None:
    desk = Desk()
    warm = desk.warm_one()
    effects = desk.hear(CancelJob(warm))
    assert payloads(effects, CancelJob) == []
    assert not desk.machine.warm.entries[warm].ending


def test_one_of_an_earlier_dispatcher_ends() -> None:
    desk = Desk()
    stray = JobId("job-of-before")
    assert payloads(desk.says(stray, 3, warm=True, waits=True), CancelJob) == [CancelJob(stray)]
    effects = desk.says(stray, 4, JobState.CANCELED, warm=True)
    assert payloads(effects, CancelJob) == []
    assert desk.says(stray, 5, JobState.CANCELED, warm=True, released=True).job_masters == [StopJobMaster(stray)]


def test_f_03_a_new_dispatcher_has_the_jobs_that_took_one_and_none_that_waits() -> None:
    progress = JobProgress(LeaderToken(5), attempt=1, warm=True)
    desk = Desk(RecoveredJob(JobId("taken"), "a", spec(), progress), RecoveredJob(JobId("not-yet"), "b", spec()))
    begun = starts(desk.wait(0))
    assert [(change.job, change.warm, change.progress) for change in begun] == [
        ("taken", False, progress),
        ("not-yet", False, None),
    ]
    assert desk.machine.warm.entries == {}


def test_at_the_end_all_are_ended_and_none_is_begun() -> None:
    desk = Desk(most=2)
    warm = desk.warm_one()
    effects = desk.note(desk.machine.end_warm(desk.now))
    assert payloads(effects, CancelJob) == [CancelJob(warm)]
    assert starts(effects) == []
    job, _ = desk.submit()
    assert job != warm
    desk.says(job, 1)
    assert starts(desk.wait(60)) == []
    desk.says(warm, 8, JobState.CANCELED, warm=True, released=True)
    assert starts(desk.wait(60)) == []
    assert desk.machine.next_timer() is None
