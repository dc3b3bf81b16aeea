"""The planted bugs: single changes to the protocol, each of which the simulator must find (``planted``).

Each is a mistake that somebody could make: a fence dropped, a retry left out, a report read the wrong way round. The
``old`` text is looked for in the module as it is now, so a change there may ask for a new text here. Some mistakes
the protocol makes good by itself, because all that is said is absolute and repeated: they say so, and are not looked
for."""

from __future__ import annotations

from slotwise.simulation.planting import PlantedBug

_DISPATCHER = "slotwise.dispatcher.machine"
_RM = "slotwise.resourcemanager.machine"
_SLOTS = "slotwise.resourcemanager.slot_manager"
_LEDGER = "slotwise.resourcemanager.ledger"
_PROVISIONING = "slotwise.resourcemanager.provisioning"
_SIZING = "slotwise.resourcemanager.sizing"
_TE = "slotwise.taskexecutor.machine"
_TABLE = "slotwise.taskexecutor.slot_table"
_JM = "slotwise.jobmaster.machine"
_POOL = "slotwise.jobmaster.slot_pool"
_WORKERS = "slotwise.jobmaster.worker_link"
_RESOURCES = "slotwise.jobmaster.resource_link"
_DRIVER = "slotwise.jobmaster.driver"
_DEPLOYMENTS = "slotwise.jobmaster.deployments"
_EXECUTORS = "slotwise.jobmaster.executors"
_PHASES = "slotwise.jobmaster.phases"
_RESCALING = "slotwise.jobmaster.rescaling"
_REGIONS = "slotwise.model.regions"
_WORK = "slotwise.jobmaster.work"
_STATUS = "slotwise.jobmaster.status_link"
_OUTBOX = "slotwise.protocol.outbox"

_BUGS = (
    # ------------------------------------------------------------------------------------------- fencing
    PlantedBug(
        "fence-of-receiver-dropped",
        _OUTBOX,
        "if self.token and meant_for != self.token and not",
        "if self.token and meant_for > self.token and not",
        "a leader takes messages that are meant for an earlier one",
    ),
    PlantedBug(
        "fence-of-sender-dropped",
        _OUTBOX,
        "if envelope.sender_token and envelope.sender_token < self.known_token(envelope.sender):",
        "if envelope.sender_token and False:",
        "messages of a replaced leader take effect",
    ),
    PlantedBug(
        "deposed-leader-stays",
        _OUTBOX,
        "message.address == self.address and message.current > self.token > 0",
        "message.address == self.address and message.current < self.token",
        "a leader that is told of a newer one goes on",
    ),
    PlantedBug(
        "worker-ignores-new-leader",
        _TE,
        "if newer and not isinstance(envelope.payload, WorkerRegistered):",
        "if newer and isinstance(envelope.payload, ShutdownWorker):",
        "a worker does not register with a new ResourceManager",
        "the heartbeat time-out does the same, later",
    ),
    PlantedBug(
        "job-ignores-new-rm",
        _RESOURCES,
        "if self._out.learn(RESOURCE_MANAGER, token) and self._registered:",
        "if not self._out.learn(RESOURCE_MANAGER, token) and False:",
        "a job does not register with a new ResourceManager that it hears of",
        "an answer or a time-out of the other side leads to the same, later",
    ),
    PlantedBug(
        "versions-not-counted-afresh",
        _RM,
        "            self.slots.ledger.renew(message.job)\n        if self.slots",
        "        if self.slots",
        "the declarations of a job's new leader count as older than those of the one before",
    ),
    # ------------------------------------------------------------------------------------------- ResourceManager
    PlantedBug(
        "allocation-not-repeated",
        _RM,
        "self.slots.late(self.config.allocation_retry_s, now).items():",
        "self.slots.late(1e9, now).items():",
        "a lost allocation is waited for without end",
    ),
    PlantedBug(
        "pending-not-counted",
        _SLOTS,
        "        self.ledger.gain(job, profile, assignment.count)",
        "        self.ledger.gain(job, profile, 0)",
        "slots that are asked for and not yet confirmed do not count as held",
    ),
    PlantedBug(
        "refusal-not-rolled-back",
        _SLOTS,
        "                self._drop(entry, allocation, now)\n                rolled_back = True",
        "                rolled_back = True",
        "a refused allocation stays in the books",
    ),
    PlantedBug(
        "report-frees-pending",
        _SLOTS,
        "if allocation not in reported and slot.pending_since is None:",
        "if allocation not in reported:",
        "a report that was sent before an allocation came frees it",
    ),
    PlantedBug(
        "report-frees-nothing",
        _SLOTS,
        "if allocation not in reported and slot.pending_since is None:",
        "if allocation in reported and slot.pending_since is None and False:",
        "slots that a worker has released stay in the books",
    ),
    PlantedBug(
        "unknown-slots-not-adopted",
        _SLOTS,
        "                self._add(entry, allocation, Slot(status.job, status.profile, None), now)\n",
        "",
        "slots that only the worker knows are not taken into the books",
    ),
    PlantedBug(
        "old-reports-count",
        _SLOTS,
        "if report.seq <= entry.report_seq:",
        "if report.seq < 0:",
        "a report that was overtaken by a newer one is believed",
    ),
    PlantedBug(
        "heartbeat-not-noted",
        _SLOTS,
        "        entry = self.workers[worker]\n        self.fleet.hear(entry, now)\n",
        "        entry = self.workers[worker]\n",
        "a worker's reports are no sign of life",
    ),
    PlantedBug(
        "lost-worker-keeps-slots",
        _SLOTS,
        "            self.ledger.lose(slot.job, slot.profile)\n        return lost",
        "            pass\n        return lost",
        "a job's slots on a lost worker still count as held",
    ),
    PlantedBug(
        "loss-not-told",
        _RM,
        "            if job in self.jobs:\n                self._out.send(effects, self.jobs[job].address, WorkerLost(",
        "            if job not in self.jobs:\n                self._out.send(effects, f'jm:{job}', WorkerLost(",
        "jobs are not told that a worker of theirs is lost",
        "the heartbeat time-out does the same, later",
    ),
    PlantedBug(
        "unknown-worker-not-told",
        _RM,
        "        if entry is None:\n            self._out.send(effects, sender, RegisterAgain())\n            return\n"
        "        if not _adds_up(entry.total",
        "        if entry is None:\n            return\n        if not _adds_up(entry.total",
        "a worker that was given up is not asked to register again",
        "the heartbeat time-out does the same, later",
    ),
    PlantedBug(
        "unknown-job-not-told",
        _RM,
        "        if job is None:\n            self._out.send(effects, envelope.sender, RegisterAgain())\n",
        "        if job is None:\n",
        "a job that is not registered is not asked to be",
        "an answer or a time-out of the other side leads to the same, later",
    ),
    PlantedBug(
        "old-declaration-wins",
        _LEDGER,
        "elif version < entry.version:",
        "elif version < entry.version - 1:",
        "a declaration that was overtaken by a newer one counts",
    ),
    PlantedBug(
        "declaration-moves-back",
        _LEDGER,
        "        entry.version = version\n",
        "        self._next_order += 1\n        self._note(entry.order, job, {})\n"
        "        entry.order = self._next_order\n"
        "        entry.version = version\n",
        "each change of a job's requirements puts it at the end of the queue",
    ),
    PlantedBug(
        "account-stays",
        _LEDGER,
        "        if (entry.over or not entry.declared) and not entry.held:",
        "        if entry.over and not entry.required and False:",
        "the account of an ended job is kept for ever",
    ),
    PlantedBug(
        "maximum-without-pending",
        _SLOTS,
        "at_most = self.sizing.more_workers(self.fleet.there, self.fleet.count())",
        "at_most = self.sizing.more_workers(self.fleet.capacity, len(self.workers))",
        "workers on their way do not count towards the maximum",
    ),
    PlantedBug(
        "leaving-worker-gets-slots",
        _PROVISIONING,
        "            fleet.mark(fleet.workers[worker], leaving=True)\n",
        "            fleet.workers[worker].leaving = True\n",
        "a worker that was told to go gets slots",
    ),
    PlantedBug(
        "start-timeout-dropped",
        _PROVISIONING,
        '            self._timers.set(("start", pending.worker), now + self._config.worker_start_timeout_s)\n',
        "",
        "a worker that never comes is waited for without end",
    ),
    PlantedBug(
        "minimum-not-kept",
        _SIZING,
        "return self.workers_for_minimum(there - total) == 0 and",
        "return",
        "an idle worker goes although the minimum needs it",
    ),
    # ------------------------------------------------------------------------------------------- TaskExecutor
    PlantedBug(
        "offer-not-repeated",
        _TE,
        '        self._timers.set(("offer", job), now + self.config.offer_retry_s)\n',
        "",
        "a slot is offered once, and kept for ever when that is lost",
    ),
    PlantedBug(
        "allocation-twice",
        _TE,
        "if going or wanted.allocation in self._freed:",
        "if going:",
        "a doubled allocation makes a slot again that was released already",
    ),
    PlantedBug(
        "unregistered-worker-allocates",
        _TE,
        "                if self.registered:\n                    self._on_allocate(message, now, effects)",
        "                self._on_allocate(message, now, effects)",
        "a worker takes slots from a leader that it has not reported to",
    ),
    PlantedBug(
        "slot-freed-under-process",
        _TE,
        "            self._end_process(slot, effects)\n        else:\n            self._destroy(slot, now, effects)",
        "            self._end_process(slot, effects)\n            slot.process = None\n"
        "        self._destroy(slot, now, effects)",
        "a slot's resources are given away before its process has ended",
    ),
    PlantedBug(
        "deploys-twice",
        _TE,
        "        if message.process in slot.started:\n",
        "        if False:\n",
        "a doubled deployment starts an ended process again",
    ),
    PlantedBug(
        "silent-job-keeps-slots",
        _TE,
        "            if silent_s >= self.config.job_master_timeout_s + self.config.job_takeover_s:",
        "            if silent_s >= 1e9:",
        "the slots of a job that is gone are never released",
    ),
    PlantedBug(
        "takeover-time-dropped",
        _TE,
        "            if silent_s >= self.config.job_master_timeout_s + self.config.job_takeover_s:",
        "            if silent_s >= self.config.job_takeover_s:",
        "a worker releases slots before their job's time-out",
    ),
    PlantedBug(
        "restarted-reports-look-old",
        _TE,
        "self._first_seq = config.incarnation << 32",
        "self._first_seq = 0 * config.incarnation",
        "the reports of a restarted worker count as older than those before",
        "its registration replaces the view, unless it is back within the grace for connections: rare",
    ),
    PlantedBug(
        "gone-not-answered",
        _TE,
        "return [slot for slot in slots if slot is not None and slot.job == job], gone",
        "return [slot for slot in slots if slot is not None], ()",
        "a worker does not tell a job which of its slots are gone",
        "the fence does the same, later",
    ),
    # ------------------------------------------------------------------------------------------- JobMaster
    PlantedBug(
        "registration-not-repeated",
        _RESOURCES,
        '            self._timers.set("register", now + self._backoff_s)\n',
        "",
        "a job whose registration is lost is never known",
        "the repeated declaration is answered with the request to register",
    ),
    PlantedBug(
        "declaration-not-repeated",
        _RESOURCES,
        '        self._timers.set("declare", now + self._interval_s)\n        if self._registered:',
        "        if self._registered:",
        "a declaration is sent once",
    ),
    PlantedBug(
        "free-not-repeated",
        _WORKERS,
        "            if freeing:\n                self._out.send(effects, to, FreeSlots(",
        "            if freeing and False:\n                self._out.send(effects, to, FreeSlots(",
        "a slot is given back once, and stays when that is lost",
        "every report that shows that it has not come true has it said again",
    ),
    PlantedBug(
        "deploy-not-repeated",
        _WORKERS,
        "                    undeployed.append(slot)\n",
        "                    pass\n",
        "a process is sent to its slot once",
    ),
    PlantedBug(
        "stop-not-repeated",
        _WORKERS,
        "                    self.end_process(slot, effects, again=True)\n",
        "                    pass\n",
        "a process is asked to end once",
        "every report that shows that it has not come true has it said again",
    ),
    PlantedBug(
        "directives-not-repeated",
        _JM,
        "        self.deployments.direct(effects, again=True)\n",
        "",
        "the driver is told once which executors may join it",
        "every report that shows that it has not come true has it said again",
    ),
    PlantedBug(
        "gone-slots-stay",
        _WORKERS,
        "            elif slot.confirmed and slot.allocation not in lost:\n"
        "                lost.append(slot.allocation)\n",
        "",
        "a slot that its worker does not report any more is still held",
    ),
    PlantedBug(
        "old-job-reports-count",
        _WORKERS,
        "if message.seq <= view.seq:",
        "if message.seq < 0:",
        "a report to a job that was overtaken by a newer one is believed",
    ),
    PlantedBug(
        "silent-worker-kept",
        _WORKERS,
        "            if self._views[worker].last_heard + timeout_s < now:",
        "            if self._views[worker].last_heard + 1e9 < now:",
        "a job holds the slots of a worker that is gone, if the ResourceManager's word of that is lost",
    ),
    PlantedBug(
        "surplus-offer-accepted",
        _POOL,
        "            elif any(matches(profile, offer.profile) for profile in self.missing()):",
        "            elif any(matches(profile, offer.profile) for profile in self.required):",
        "a job takes more slots than it needs",
        "surplus slots are given back after a while",
    ),
    PlantedBug(
        "driver-without-fence",
        _PHASES,
        '        assert unseen is not None\n        self._job.timers.set("fence", unseen.until)',
        '        assert unseen is not None\n        unseen.until = now\n        self._job.timers.set("fence", now)',
        "another driver begins while the first may still live out of sight",
    ),
    PlantedBug(
        "new-leader-forgets-driver",
        _DRIVER,
        "        if progress.driver_worker is not None and progress.driver_allocation is not None:",
        "        if progress.driver_worker is None and progress.driver_allocation is not None:",
        "a new leader of a job does not look for the driver that lives",
    ),
    PlantedBug(
        "driver-place-not-recorded",
        _DRIVER,
        "            driver_worker=slot.worker,\n            driver_allocation=slot.allocation,\n            secret",
        "            secret",
        "it is not recorded where the driver was sent",
    ),
    PlantedBug(
        "executor-ids-not-reserved",
        _DRIVER,
        "            executor_ids_below=next_executor_id + _ID_BLOCK,\n            warm=warm,",
        "            executor_ids_below=1,\n            warm=warm,",
        "a new leader of a job uses executor ids again",
    ),
    PlantedBug(
        "old-driver-words-count",
        _JM,
        "slot.allocation == self.driver.slot and _runs(status, self.driver.name):",
        "slot.allocation == self.driver.slot:",
        "the last words of an earlier driver in the same slot hide those of the present one",
        "needs a driver in the slot of an earlier one and late words of that: rare",
    ),
    PlantedBug(
        "executors-above-maximum",
        _DEPLOYMENTS,
        "        for executor in self.executors.above(most):",
        "        for executor in ():",
        "executors that are found again add to those that took their places",
    ),
    PlantedBug(
        "driver-alone",
        "slotwise.jobmaster.admission",
        "    if executors < bounds.least:",
        "    if executors < 0:",
        "a driver is started without the minimum of executor slots",
    ),
    PlantedBug(
        "surplus-by-another-order",
        _POOL,
        "        return min((since + idle_timeout_s for _, since in self._excess()), default=None)",
        "        return min((s.idle_since + idle_timeout_s for s in self.slots.values()\n"
        "            if s.idle_since is not None and match_slots(self.required, self.held())[1].get(s.profile)),\n"
        "            default=None)",
        "the timer for surplus slots comes up for ever when the wrong one is looked at",
    ),
    PlantedBug(
        "old-bounds-win",
        _RESCALING,
        "if version <= self.version:",
        "if version < 0:",
        "bounds that were overtaken by newer ones count",
    ),
    PlantedBug(
        "cool-down-never-ends",
        _RESCALING,
        "            self._timers.set(_TIMER, self._cool_until)\n",
        "",
        "executors that are to go after the cool-down stay",
        "the next retry finds that the cool-down is over",
    ),
    PlantedBug(
        "decommission-without-end",
        _DEPLOYMENTS,
        "(executor.leave_by <= now or not self.executors.active)",
        "not self.executors.active",
        "an executor that cannot move its blocks is waited for without end",
    ),
    # ------------------------------------------------------------------------------------------- Dispatcher
    PlantedBug(
        "bounds-not-repeated",
        _DISPATCHER,
        '        self._timers.set(("scale", record.job), now + self.config.retry_s)\n',
        "",
        "new bounds are sent to the JobMaster once",
        "needs the loss of one message inside a master: rare",
    ),
    PlantedBug(
        "bounds-not-recovered",
        _DISPATCHER,
        "            record.given_bounds, record.bounds_version = known.bounds, known.bounds_version\n",
        "",
        "a new Dispatcher forgets acknowledged bounds",
    ),
    PlantedBug(
        "key-forgotten",
        _DISPATCHER,
        "            self._by_key[known.key] = known.job\n",
        "            self._by_key[known.job] = known.job\n",
        "a new Dispatcher takes a repeated submission for a new job",
    ),
    PlantedBug(
        "cancel-not-repeated",
        _DISPATCHER,
        '        self._timers.set(("cancel", record.job), now + self.config.retry_s)\n',
        "",
        "a cancel is sent to the JobMaster once",
        "needs the loss of one message inside a master: rare",
    ),
    PlantedBug(
        "cancel-not-recovered",
        _DISPATCHER,
        "record = JobRecord(known.job, known.key, known.spec, cancelling=known.cancelled)",
        "record = JobRecord(known.job, known.key, known.spec)",
        "a new Dispatcher forgets an acknowledged cancel",
    ),
    PlantedBug(
        "job-not-recovered",
        _DISPATCHER,
        '                self._timers.set(("recover", known.job, known.progress), now)\n',
        "                pass\n",
        "a new Dispatcher starts no JobMaster for the jobs that go on",
    ),
    PlantedBug(
        "status-not-repeated",
        _JM,
        "        self._status.repeat(effects)\n",
        "",
        "a job's last word to the Dispatcher is said once",
    ),
    PlantedBug(
        "result-not-recorded",
        _STATUS,
        "            effects.persist.append(PersistResult(self._job, self._status.result, self._out.token))\n",
        "            pass\n",
        "how a job ended is told and not recorded",
    ),
    # ------------------------------------------------------------------------------------------- pipelines
    PlantedBug(
        "region-before-its-inputs",
        _REGIONS,
        "        and all(need in finished for need in region.needs if need in selected)\n",
        "        and (not region.needs or any(need in finished for need in region.needs))\n",
        "a region runs when one of those that it reads is finished",
    ),
    PlantedBug(
        "finished-regions-forgotten",
        _WORK,
        "            job.driver.progress.finished_regions,\n",
        "            (),\n",
        "a new leader of a pipeline runs what is on record as finished",
    ),
    PlantedBug(
        "regions-of-the-unseen-dropped",
        _EXECUTORS,
        "return {**{one: region for one, region in self.report.regions.items() if one in unseen}, **known}",
        "return known",
        "a new leader takes executors that it has not seen yet from their regions",
        unseen="it puts nothing off: what it has not seen yet is shown within a retry, and then has its region again",
    ),
    PlantedBug(
        "drained-worker-gets-slots",
        _RM,
        "            self.slots.fleet.mark(entry, leaving=True)\n",
        "            pass\n",
        "a worker that is about to go gets new slots",
        unseen="the worker itself refuses them",
    ),
    PlantedBug(
        "drain-without-end",
        _TE,
        '        self._timers.set("drained", now + self.config.drain_timeout_s)\n',
        "",
        "a worker that is about to go waits for its executors for ever",
        unseen="each job ends them itself after its own time-out, and slots of a silent job are released",
    ),
)

PLANTED = {bug.name: bug for bug in _BUGS}
