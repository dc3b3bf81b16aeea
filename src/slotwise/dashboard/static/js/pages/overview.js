// What the cluster has, what is used of it, and what runs on it.
import { h } from "../dom.js";
import { count, cpu, gib, plural, when } from "../format.js";
import { badge, elapsed, executors, jobLink, meters, panel, staleness, state, table } from "../parts.js";
import { href } from "../router.js";
import { mapPanel, slotsQuery } from "./slots.js";

const SHOWN = 10;
/** With more workers than this the map is a page of its own. */
const SMALL_CLUSTER = 24;
const LIVING = "CREATED,WAITING_FOR_RESOURCES,DEPLOYING,RUNNING,RECONCILING,RESTARTING,FAILING,CANCELLING";

export function overviewPage(_, context) {
  const overview = context.query("/v1/overview", { topics: ["jobs", "workers", "resources"] });
  const resources = context.query("/v1/resources", { topics: ["jobs", "workers", "resources"] });
  const living = context.query(`/v1/jobs/overview?state=${LIVING}&order=-start&limit=${SHOWN}`, { topics: ["jobs"] });
  const ended = context.query(`/v1/jobs/overview?state=FINISHED,FAILED,CANCELED&order=-start&limit=${SHOWN}`, {
    topics: ["jobs"],
  });
  const slots = slotsQuery(context);
  return {
    title: () => "Overview",
    view: () => [
      h("h1", {}, "Overview"),
      state(overview, "the overview") ?? tiles(overview.data, resources.data),
      staleness(overview),
      state(resources, "the resources") ?? cluster(resources.data),
      slots.data && slots.data.workers.length <= SMALL_CLUSTER
        ? mapPanel(slots, context, { legend: true })
        : slots.data &&
          panel(
            "Slots",
            {},
            h(
              "p",
              { class: "pad" },
              h("a", { href: href(["slots"]) }, `Open the slot map of ${plural(slots.data.workers.length, "worker")}`),
            ),
          ),
      panel(
        "Running and waiting",
        { actions: h("a", { href: href(["jobs"], { state: "living" }) }, "All") },
        state(living, "the jobs") ?? jobRows(living.data, "No job is running or waiting. ", true),
      ),
      panel(
        "Ended lately",
        { actions: h("a", { href: href(["jobs"], { state: "ended" }) }, "All") },
        state(ended, "the jobs") ?? jobRows(ended.data, "No job has ended yet.", false),
      ),
    ],
  };
}

function tiles(overview, resources) {
  const pending = resources?.pending_workers ?? 0;
  return h(
    "div",
    { class: "tiles" },
    tile("Workers", count(overview.taskmanagers), pending ? `${count(pending)} on their way` : "none on their way", ["workers"]),
    tile("Slots", count(overview["slots-total"]), slotsFor(overview["warm-applications"]), ["slots"]),
    tile("Jobs under way", count(overview["jobs-running"]), "running or waiting", ["jobs"], { state: "living" }),
    tile("Finished", count(overview["jobs-finished"]), "", ["jobs"], { state: "FINISHED" }),
    tile("Failed", count(overview["jobs-failed"]), "", ["jobs"], { state: "FAILED" }, overview["jobs-failed"] ? "bad" : ""),
    tile("Cancelled", count(overview["jobs-cancelled"]), "", ["jobs"], { state: "CANCELED" }),
  );
}

const slotsFor = (warm) => (warm ? `made for jobs now, and for ${count(warm)} warm application(s)` : "made for jobs now");

const tile = (name, figure, note, path, query, kind = "") =>
  h(
    "a",
    { class: `tile ${kind}`, href: href(path, query) },
    h("span", { class: "tile-name" }, name),
    h("span", { class: "tile-figure" }, figure),
    h("span", { class: "tile-note" }, note),
  );

function cluster(resources) {
  const { used, total } = resources;
  return panel(
    "Resources",
    {},
    resources.workers
      ? h("div", { class: "meters" }, meters(used, total))
      : h("p", { class: "quiet pad" }, "No worker is registered."),
    h(
      "p",
      { class: "quiet small pad" },
      limit("Minimum", resources.minimum, null),
      " · ",
      limit("Maximum", resources.maximum, resources.max_workers),
    ),
  );
}

function limit(name, size, workers) {
  const parts = [];
  if (size?.cpu_milli) parts.push(cpu(size.cpu_milli));
  if (size?.memory_bytes) parts.push(gib(size.memory_bytes));
  if (workers !== null && workers !== undefined) parts.push(plural(workers, "worker"));
  return `${name}: ${parts.join(", ") || "none set"}`;
}

function jobRows(answer, empty, running) {
  const columns = [
    { name: "Job" },
    { name: "State" },
    { name: "Started" },
    { name: "Duration", number: true },
    running ? { name: "Executors", number: true } : { name: "Reason" },
  ];
  const rows = answer.jobs.map((job) => ({
    key: job.jid,
    cells: [
      jobLink(job.jid, job.name),
      badge(job.phase),
      when(job["start-time"]),
      elapsed(job),
      running ? executors(job) : h("span", { class: "clip", title: job.reason }, job.reason || "–"),
    ],
  }));
  return table(running ? "Jobs under way" : "Ended jobs", columns, rows, {
    empty: running ? [empty, "Start one with ", h("code", {}, "slotwise submit job.py"), "."] : empty,
  });
}
