"""Carries the faults of a scenario out, and mends everything in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.model.ids import DISPATCHER, RESOURCE_MANAGER, WorkerId, job_master_address
from slotwise.simulation.faults import Fault, FaultKind
from slotwise.simulation.outside import block

if TYPE_CHECKING:
    from slotwise.simulation.cluster import Cluster
    from slotwise.simulation.engine import OsProcess
    from slotwise.simulation.hosts import Host
    from slotwise.simulation.masters import MasterProcess

_REBOOT_S = 1.0
_DIAL_S = 6.0
# Faults that keep no driver out of reach, and such as do not when they are over soon.
_QUICK = (
    FaultKind.CRASH_MASTER,
    FaultKind.TORN_MASTER,
    FaultKind.LOSE_LEADERSHIP,
    FaultKind.CRASH_JM,
    FaultKind.CRASH_DISPATCHER,
    FaultKind.BREAK_STREAM,
)
_HARMLESS = (
    FaultKind.CRASH_RM,
    FaultKind.SLOW_PROVISIONER,
    FaultKind.FAILING_PROVISIONER,
    FaultKind.KILL_EXECUTOR,
    FaultKind.BLOCK_WORKER,
    FaultKind.CLOCK_STEP,
)


class Injector:
    """See the module's head. ``disturbed_until``: when the last fault that can cut a driver off was over."""

    def __init__(self, cluster: Cluster) -> None:
        self.disturbed_until = 0.0
        self._cluster = cluster
        self._healed = False
        for number, fault in enumerate(cluster.scenario.faults):
            if fault.at_s < cluster.scenario.faults_s:
                cluster.engine.at(fault.at_s, self._begin, number, fault)
                cluster.engine.at(min(fault.at_s + fault.for_s, cluster.scenario.faults_s), self._end, number, fault)

    def _host(self, target: str) -> Host | None:
        """A host by its name, or the n-th of those that there are."""
        hosts = self._cluster.hosts
        if target.startswith("#"):
            names = list(hosts)
            return hosts[names[int(target[1:]) % len(names)]] if names else None
        return hosts.get(WorkerId(target))

    def _is_harmless(self, fault: Fault) -> bool:
        """Whether no driver may be given up for it (B: F-02, F-03)."""
        scenario = self._cluster.scenario
        away_s = fault.for_s + scenario.network.notice_s + _DIAL_S
        soon = away_s < min(scenario.jm.heartbeat_timeout_s, scenario.times.job_master_timeout_s)
        return fault.kind in _HARMLESS or (fault.kind in _QUICK and soon)

    def _begin(self, number: int, fault: Fault) -> None:
        cluster = self._cluster
        host = self._host(fault.target) if fault.target[:1] in ("#", "w") else None
        cluster.note("fault", f"f{number} begins:", fault, host.name if host is not None else "")
        if not self._is_harmless(fault):
            self.disturbed_until = max(self.disturbed_until, cluster.engine.now + fault.for_s + fault.amount)
        master = cluster.leader
        match fault.kind:
            case FaultKind.STORM:
                cluster.network.start_storm(number, host.name if host is not None else "*", fault.amount)
            case FaultKind.SLOW_PROVISIONER:
                cluster.provisioner.slow[number] = fault.amount
            case FaultKind.FAILING_PROVISIONER:
                cluster.provisioner.failing[number] = fault.amount
            case FaultKind.INTERNAL_PARTITION:
                cluster.network.cut_pair(fault.target)
            case FaultKind.KILL_DRIVER | FaultKind.KILL_EXECUTOR:
                self._kill_process(fault)
            case FaultKind.CLOCK_STEP:
                # No machine sees a wall clock: there is nothing to change.
                pass
            case _ if host is not None:
                self._hit_host(number, fault, host)
            case _ if master is not None:
                self._hit_master(fault, master)

    def _hit_host(self, number: int, fault: Fault, host: Host) -> None:
        cluster = self._cluster
        match fault.kind:
            case FaultKind.PARTITION:
                cluster.network.cut(host.name, fault.detail)
                cluster.engine.after(cluster.scenario.network.ping_timeout_s, self._ping, host, host.link)
                cluster.engine.after(fault.for_s, self._mend, host.name, fault.detail)
            case FaultKind.BREAK_STREAM:
                host.disconnect()
            case FaultKind.PAUSE_WORKER if host.process is not None:
                self._pause(host.process, fault.for_s)
                cluster.engine.after(cluster.scenario.network.ping_timeout_s, self._ping, host, host.link)
            case FaultKind.CRASH_WORKER:
                host.kill_worker()
                if host.provisioned:
                    cluster.provisioner.gone(host)
                cluster.engine.after(fault.for_s, host.start_worker)
            case FaultKind.CRASH_HOST:
                host.crash()
                if host.provisioned:
                    cluster.provisioner.gone(host)
                cluster.engine.after(fault.for_s + _REBOOT_S, host.boot)
            case FaultKind.TERMINATE_WORKER:
                host.terminate("SIGTERM")
            case FaultKind.START_FAILURES:
                cluster.programs.start_failures[number] = (host.name, fault.amount)
            case FaultKind.BLOCK_WORKER:
                block(cluster, host.name, True)
                cluster.engine.after(fault.for_s, self._unblock, host.name)
            case _:
                pass

    def _hit_master(self, fault: Fault, master: MasterProcess) -> None:
        cluster = self._cluster
        match fault.kind:
            case FaultKind.CRASH_MASTER:
                master.end()
                cluster.engine.after(fault.for_s, self._elect)
            case FaultKind.TORN_MASTER:
                master.torn = True
            case FaultKind.PAUSE_MASTER:
                self._pause(master.process, fault.for_s)
            case FaultKind.LOSE_LEADERSHIP:
                # The new one begins at once or after the session's time-out; the old one does not notice for a while.
                cluster.leader = None
                cluster.engine.after(fault.for_s, self._elect)
                cluster.engine.after(fault.for_s + fault.amount, master.end)
            case FaultKind.CRASH_RM:
                master.crash_component(RESOURCE_MANAGER, fault.for_s, fault.amount)
            case FaultKind.CRASH_DISPATCHER:
                master.crash_component(DISPATCHER, fault.for_s, fault.amount)
            case FaultKind.CRASH_JM:
                for client in cluster.clients:
                    if client.plan.name == fault.target and client.job is not None:
                        master.crash_component(job_master_address(client.job), fault.for_s, fault.amount)
            case _:
                pass

    def _end(self, number: int, fault: Fault) -> None:
        cluster = self._cluster
        cluster.network.end_storm(number)
        cluster.provisioner.slow.pop(number, None)
        cluster.provisioner.failing.pop(number, None)
        cluster.programs.start_failures.pop(number, None)
        if fault.kind is FaultKind.INTERNAL_PARTITION and cluster.network.faulty:
            cluster.network.cut_pair(fault.target, -1)
        if fault.kind is FaultKind.TORN_MASTER and cluster.leader is not None:
            cluster.leader.torn = False
            return
        if cluster.leader is None and fault.kind is FaultKind.TORN_MASTER:
            self._elect()

    # ------------------------------------------------------------------------------------------- single deeds

    def _mend(self, host: WorkerId, direction: str) -> None:
        if self._cluster.network.faulty:
            self._cluster.network.cut(host, direction, -1)

    def _ping(self, host: Host, link: MasterProcess | None) -> None:
        """The ends of a stream find that nothing comes through."""
        silent = self._cluster.network.is_cut(host.name) or (host.process is not None and host.process.paused)
        if link is not None and host.link is link and silent:
            host.disconnect()

    def _pause(self, process: OsProcess, for_s: float) -> None:
        self._cluster.engine.pause(process)
        self._cluster.engine.after(for_s, self._cluster.engine.resume, process)

    def _elect(self) -> None:
        if self._cluster.leader is None:
            self._cluster.elect()

    def _unblock(self, worker: WorkerId) -> None:
        # Asked again later, because the request may be lost.
        block(self._cluster, worker, False)
        if not self._healed:
            self._cluster.engine.after(10.0, self._unblock, worker)

    def _kill_process(self, fault: Fault) -> None:
        wanted = fault.kind is FaultKind.KILL_DRIVER
        for host in self._cluster.hosts.values():
            for process in list(host.slots.values()):
                if process.alive and process.is_driver == wanted and process.spec_name == fault.target:
                    self._cluster.programs.end(process, -9, "killed")
                    return

    # ------------------------------------------------------------------------------------------- the end of faults

    def heal(self) -> None:
        """No more faults: what is paused goes on, what is down comes up, who was replaced is gone."""
        cluster = self._cluster
        self._healed = True
        self.disturbed_until = max(self.disturbed_until, cluster.engine.now)
        cluster.note("fault", "all faults end")
        cluster.network.heal()
        cluster.provisioner.slow.clear()
        cluster.provisioner.failing.clear()
        cluster.programs.start_failures.clear()
        for master in list(cluster.masters):
            master.torn = False
            for zombie in list(master.zombies):
                master.end_zombie(zombie)
            if master is cluster.leader:
                cluster.engine.resume(master.process)
            else:
                master.end()
        self._elect()
        for host in list(cluster.hosts.values()):
            if host.process is not None:
                cluster.engine.resume(host.process)
            host.boot()
            host.start_worker()
            block(cluster, host.name, False)
