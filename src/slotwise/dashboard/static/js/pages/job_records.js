// What is kept of a job: Spark's stages, its events, and what it was submitted with.
import { h } from "../dom.js";
import { count, when } from "../format.js";
import { isFinal, panel, staleness, state, table } from "../parts.js";
import { pairs } from "./configuration.js";

const SHOWN_EVENTS = 500;

export function stagesTab(_, job) {
  const columns = [
    { name: "Stage", number: true },
    { name: "Name" },
    { name: "Tasks" },
    { name: "Running", number: true },
    { name: "Failed", number: true },
  ];
  const rows = (job.stages ?? []).map((stage) => ({
    key: stage.id,
    cells: [
      String(stage.id),
      h("span", { class: "wrap" }, stage.name),
      progress(stage),
      count(stage.running),
      h("span", { class: stage.failed ? "bad-text" : "" }, count(stage.failed)),
    ],
  }));
  const empty = isFinal(job)
    ? "The job has ended; its stages were in Spark's UI while it ran."
    : "No stage is active now. Spark's UI has those that are over.";
  return panel("Active stages", {}, table("Active stages", columns, rows, { empty }));
}

function progress(stage) {
  const share = stage.tasks ? (100 * stage.done) / stage.tasks : 0;
  return h(
    "span",
    { class: "meter inline" },
    h(
      "span",
      { class: "meter-bar", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": stage.tasks, "aria-valuenow": stage.done, "aria-label": `Tasks of stage ${stage.id}` },
      h("span", { class: "meter-fill", style: { width: `${share.toFixed(1)}%` } }),
    ),
    h("span", { class: "meter-text" }, `${count(stage.done)} of ${count(stage.tasks)}`),
  );
}

const filter = { text: "" };

export function eventsTab(page) {
  const events = page.events();
  const missing = state(events, "the events");
  if (missing) return missing;
  const rows = events.data.events
    .map((event) => ({ event, text: describe(event) }))
    .filter(({ event, text }) => `${event.name} ${event.worker ?? ""} ${text}`.toLowerCase().includes(filter.text))
    .reverse();
  return [
    h(
      "div",
      { class: "filters", role: "search" },
      h("input", {
        type: "search",
        class: "field",
        placeholder: "Event, worker or text",
        "aria-label": "Filter events",
        "data-search": true,
        value: filter.text,
        oninput: (input) => {
          filter.text = input.target.value.trim().toLowerCase();
          page.redraw();
        },
      }),
    ),
    staleness(events),
    panel(
      `Events: ${count(rows.length)}`,
      {},
      table(
        "Events, newest first",
        [{ name: "Time" }, { name: "Event" }, { name: "Worker" }, { name: "Details" }],
        rows.slice(0, SHOWN_EVENTS).map(({ event, text }) => ({
          key: event.seq,
          cells: [
            when(event.unix_s * 1000),
            event.name,
            h("span", { class: "mono small" }, event.worker ?? "–"),
            h("span", { class: "wrap small" }, text || "–"),
          ],
        })),
        { empty: filter.text ? "No event fits." : "No event of this job has been kept." },
      ),
      rows.length > SHOWN_EVENTS && h("p", { class: "quiet pad" }, `The newest ${SHOWN_EVENTS} of ${count(rows.length)}.`),
    ),
  ];
}

function describe(event) {
  const fields = Object.entries(event.fields).filter(([name, value]) => value !== null && value !== "" && name !== "plan");
  const text = fields.map(([name, value]) => `${name}: ${value}`);
  if (event.allocation) text.push(`slot: ${event.allocation}`);
  return text.join(", ");
}

export function configurationTab(page) {
  const config = page.query("config", `${page.base}/config`, { topics: [] });
  return panel("Submitted with", {}, state(config, "the configuration") ?? pairs(config.data));
}
