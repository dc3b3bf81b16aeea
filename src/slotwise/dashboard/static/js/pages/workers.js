// The workers: what each has, how much of it is used, and whether it is heard of.
import { h } from "../dom.js";
import { bytes, count, cpu, duration, gib, plural } from "../format.js";
import { meter, panel, staleness, state, table, workerLink } from "../parts.js";

const COLUMNS = [
  { name: "Worker" },
  { name: "Host" },
  { name: "State" },
  { name: "Slots", number: true },
  { name: "CPU" },
  { name: "Memory" },
  { name: "Own memory", number: true },
  { name: "Heard of", number: true },
];
const SHOWN = 200;

export function workersPage(_, context) {
  const workers = context.query("/v1/slots", { topics: ["workers", "resources"], atMostEvery: 1_000, poll: 10_000 });
  const search = { text: "" };
  return {
    title: () => "Workers",
    view: () => [
      h("h1", {}, "Workers"),
      h(
        "div",
        { class: "filters", role: "search" },
        h("input", {
          type: "search",
          class: "field",
          placeholder: "Worker or host",
          "aria-label": "Filter by worker or host",
          "data-search": true,
          oninput: (event) => {
            search.text = event.target.value.trim().toLowerCase();
            context.redraw();
          },
        }),
      ),
      staleness(workers),
      state(workers, "the workers") ?? rows(workers, search.text),
    ],
  };
}

/** A state in words; the class says how to colour it. */
export function workerState(worker) {
  if (worker.leaving) return h("span", { class: "badge warn" }, "leaving");
  if (worker.blocked) return h("span", { class: "badge warn" }, "blocked");
  return h("span", { class: "badge ok" }, worker.slots.length ? "in use" : "free");
}

/** How long ago the worker was heard of: what the master said, and what has gone by since. */
export const age = (milliseconds, at) => `${duration(Math.max(0, milliseconds + Date.now() - at))} ago`;

function rows(query, text) {
  const { workers, pending } = query.data;
  const fitting = workers.filter((worker) => `${worker.id} ${worker.host}`.toLowerCase().includes(text));
  const coming = pending.filter((worker) => worker.id.toLowerCase().includes(text));
  const list = [
    ...coming.map((worker) => ({
      key: worker.id,
      cells: [
        h("span", { class: "mono" }, worker.id),
        "–",
        h("span", { class: "badge wait" }, "starting"),
        "–",
        cpu(worker.total.cpu_milli),
        gib(worker.total.memory_bytes),
        "–",
        `asked for ${age(worker.since_s * 1000, query.at)}`,
      ],
    })),
    ...fitting.slice(0, SHOWN).map((worker) => ({
      key: worker.id,
      cells: [
        workerLink(worker.id),
        worker.host,
        workerState(worker),
        count(worker.slots.length),
        meter("CPU", worker.total.cpu_milli - worker.free.cpu_milli, worker.total.cpu_milli, cpu),
        meter("Memory", worker.total.memory_bytes - worker.free.memory_bytes, worker.total.memory_bytes, gib),
        bytes(worker.rss_bytes || null),
        age(worker.heartbeat_ms, query.at),
      ],
    })),
  ];
  const empty = text
    ? "No worker fits."
    : ["No worker is registered. Start one with ", h("code", {}, "slotwise worker --master URL"), "."];
  return panel(
    pending.length ? `${plural(workers.length, "worker")}, ${count(pending.length)} starting` : plural(workers.length, "worker"),
    {},
    table("Workers", COLUMNS, list, { empty }),
    fitting.length > SHOWN &&
      h("p", { class: "quiet pad" }, `The first ${SHOWN} of ${count(fitting.length)}; filter to see others.`),
  );
}
