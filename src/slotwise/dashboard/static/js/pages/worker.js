// One worker: what it has, who has slots on it, whether it is heard of, and its own log.
import { ApiError, request } from "../api.js";
import { confirm, toast } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, count, plural, size } from "../format.js";
import { facts, jobLink, meters, panel, staleness, state, table } from "../parts.js";
import { go, href } from "../router.js";
import { may } from "../session.js";
import { logPanel } from "./job_logs.js";
import { age, workerState } from "./workers.js";

/** Of so many jobs the page says what they are called and what they run here; of the others their ids. */
const KNOWN_JOBS = 12;

export function workerPage(route, context) {
  const id = route.path[1];
  const base = `/v1/taskmanagers/${encodeURIComponent(id)}`;
  const details = context.query(base, { topics: ["workers", "resources"], poll: 5_000 });
  const logs = context.query(`${base}/logs`, { topics: [] });
  const jobs = new Map();
  const jobOf = (id) => {
    if (!jobs.has(id) && jobs.size < KNOWN_JOBS) {
      jobs.set(id, context.query(`/v1/jobs/${encodeURIComponent(id)}`, { topics: [`job:${id}`] }));
    }
    return jobs.get(id)?.data;
  };
  return {
    title: () => id,
    view: (now) => {
      const missing = state(details, `worker ${id}`);
      if (missing) {
        return [
          h("h1", { class: "mono" }, id),
          missing,
          h("p", {}, "A worker that has ended is not listed any more. ", h("a", { href: href(["workers"]) }, "All workers")),
        ];
      }
      const worker = details.data;
      return [
        h(
          "div",
          { class: "job-head" },
          h(
            "div",
            { class: "job-title" },
            h("h1", { class: "mono" }, id),
            workerState({ ...worker, slots: worker.allocatedSlots }),
            h("p", { class: "quiet" }, `${worker.host} · process ${worker.pid} · heard of ${age(worker.timeSinceLastHeartbeat, details.at)}`),
          ),
          may("admin") && h("div", { class: "buttons" }, blockButton(worker, base, details)),
        ),
        staleness(details),
        h(
          "div",
          { class: "columns" },
          panel("Resources", {}, h("div", { class: "meters" }, meters(used(worker), worker.totalResource))),
          panel("About", {}, about(worker)),
        ),
        panel(plural(worker.allocatedSlots.length, "slot"), {}, slots(worker, jobOf)),
        logsOf(logs, base, id, now.path),
      ];
    },
  };
}

const used = ({ totalResource, freeResource }) => ({
  cpu_milli: totalResource.cpu_milli - freeResource.cpu_milli,
  memory_bytes: totalResource.memory_bytes - freeResource.memory_bytes,
});

function about(worker) {
  return facts([
    ["Total", size(worker.totalResource)],
    ["Free", size(worker.freeResource)],
    ["Default slot", size(worker.defaultSlotResource)],
    ["Memory of the worker itself", bytes(worker.rss_bytes || null)],
    ["Waiting for jobs", waiting(worker.warm)],
    ["New slots", worker.leaving ? "none: it is leaving" : worker.blocked ? "none: it is blocked" : "allowed"],
  ]);
}

function waiting(warm) {
  if (!warm) return "nothing, ever";
  const parts = ["drivers", "executors", "warming"].filter((kind) => warm[kind]).map((kind) => `${warm[kind]} ${kind}`);
  if (warm.memory_bytes) parts.push(bytes(warm.memory_bytes));
  const met = warm.hits + warm.misses ? `; ${warm.hits} of ${warm.hits + warm.misses} starts met one` : "";
  return `${parts.join(", ") || "nothing yet"}${met}`;
}

function slots(worker, jobOf) {
  const columns = [{ name: "Job" }, { name: "Process" }, { name: "Size" }, { name: "State" }, { name: "Slot" }];
  const rows = worker.allocatedSlots.map((slot) => ({
    key: slot.allocation,
    cells: [
      jobLink(slot.jobId, jobOf(slot.jobId)?.name),
      jobOf(slot.jobId)?.held?.find(({ allocation }) => allocation === slot.allocation)?.use ?? "–",
      size(slot.resource),
      slot.pending ? h("span", { class: "badge wait" }, "pending") : h("span", { class: "badge ok" }, "confirmed"),
      h("span", { class: "mono small" }, slot.allocation),
    ],
  }));
  return table("Slots", columns, rows, { empty: "No job has a slot here." });
}

function logsOf(logs, base, id, path) {
  const missing = state(logs, "the worker's logs");
  if (missing) return panel("Logs", {}, missing);
  const names = logs.data.logs.map((log) => log.name);
  const none = "The master has no log of this worker: it has those of the workers that it started itself.";
  if (!names.length) return panel("Logs", {}, h("p", { class: "quiet pad" }, none));
  const name = names.includes(path[2]) ? path[2] : names[0];
  return logPanel(names, name, base, false, (chosen) => go(["workers", id, chosen]));
}

function blockButton(worker, base, details) {
  const change = async () => {
    const block = !worker.blocked;
    const sure =
      !block ||
      (await confirm({
        title: `Block ${worker.id}?`,
        text: `It keeps its ${count(worker.allocatedSlots.length)} slots and gets no new ones until it is unblocked.`,
        yes: "Block it",
      }));
    if (!sure) return;
    try {
      await request(`${base}?blocked=${block}`, { method: "PATCH" });
      toast(block ? "The worker gets no new slots." : "The worker may have new slots again.");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      toast(`Not changed: ${error.message}`, "bad");
    }
    details.refetch();
  };
  return h("button", { type: "button", class: "button", onclick: change }, worker.blocked ? "Unblock" : "Block");
}
