// Pieces that several pages use.
import { now } from "./api.js";
import { h } from "./dom.js";
import { count, cpu, duration, gib, percent, words } from "./format.js";
import { href } from "./router.js";

const KINDS = {
  RUNNING: "run",
  FINISHED: "ok",
  FAILED: "bad",
  FAILING: "bad",
  CANCELED: "off",
  CANCELLING: "off",
  RESTARTING: "warn",
  RECONCILING: "warn",
  WAITING_FOR_RESOURCES: "wait",
  DEPLOYING: "wait",
  SCHEDULED: "wait",
  CREATED: "off",
};

export const kindOf = (state) => KINDS[state] ?? "off";

/** A state as a small label: a word and a dot, never colour alone. */
export const badge = (state) => h("span", { class: `badge ${kindOf(state)}` }, words(state));

export const isFinal = (job) => ["FINISHED", "FAILED", "CANCELED"].includes(job.state);

/** A job whose parts are known; an application is one vertex. */
export const isPipeline = (job) => job.vertices.some((vertex) => vertex.id !== "application");

/** A panel with a heading. */
export function panel(title, props, ...content) {
  const { actions, ...rest } = props ?? {};
  return h(
    "section",
    { ...rest, class: `panel ${rest.class ?? ""}` },
    h("header", { class: "panel-head" }, h("h2", {}, title), actions && h("div", { class: "actions" }, actions)),
    ...content,
  );
}

/** Name and value pairs. */
export const facts = (pairs) =>
  h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );

/** A table that becomes one block a row on a phone: each cell knows the name of its column. */
export function table(caption, columns, rows, { empty = "Nothing here." } = {}) {
  if (!rows.length) return h("p", { class: "quiet pad" }, empty);
  return h(
    "table",
    { class: "table" },
    h("caption", { class: "sr" }, caption),
    h(
      "thead",
      {},
      h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.number ? "num" : "" }, column.name))),
    ),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          { key: row.key, class: row.class },
          row.cells.map((cell, index) =>
            h("td", { "data-name": columns[index].name, class: columns[index].number ? "num" : "" }, cell),
          ),
        ),
      ),
    ),
  );
}

/** Used of total as a bar with its figures in words. */
export function meter(label, used, total, format) {
  const share = total > 0 ? Math.min(1, used / total) : 0;
  return h(
    "div",
    { class: "meter" },
    h("span", { class: "meter-label" }, label),
    h(
      "span",
      {
        class: "meter-bar",
        role: "meter",
        "aria-label": label,
        "aria-valuemin": 0,
        "aria-valuemax": total,
        "aria-valuenow": used,
        "aria-valuetext": `${format(used)} of ${format(total)}`,
      },
      h("span", { class: "meter-fill", style: { width: `${(share * 100).toFixed(1)}%` } }),
    ),
    h("span", { class: "meter-text" }, `${format(used)} of ${format(total)} (${percent(used, total)})`),
  );
}

export const meters = (used, total) => [
  meter("CPU", used.cpu_milli, total.cpu_milli, cpu),
  meter("Memory", used.memory_bytes, total.memory_bytes, gib),
];

/** What a page shows of a query that has no answer (yet); null when it has one. */
export function state(query, what) {
  if (query.loading) return h("p", { class: "quiet pad", role: "status" }, `Loading ${what} …`);
  if (query.data === undefined) {
    return h(
      "div",
      { class: "failure", role: "alert" },
      h("p", {}, `Cannot show ${what}: ${query.error.message}.`),
      h("button", { type: "button", class: "button", onclick: () => query.refetch() }, "Try again"),
    );
  }
  return null;
}

/** A line above what is shown when it could not be renewed. */
export const staleness = (query) =>
  query.error && query.data !== undefined
    ? h("p", { class: "stale", role: "status" }, `This is not up to date: ${query.error.message}.`)
    : null;

export const jobLink = (job, name) => h("a", { href: href(["jobs", job]), class: "strong" }, name || job);
export const workerLink = (worker) => h("a", { href: href(["workers", worker]), class: "mono" }, worker);

/** How a running job stands in a listing: registered of wanted executors. */
export function executors(job) {
  if (!job.executors?.wanted || isFinal(job)) return "–";
  return `${count(job.executors.registered)} of ${count(job.executors.wanted)}`;
}

/** Milliseconds that a job has taken; a running one's goes on. */
export function elapsed(job) {
  const begun = job["start-time"];
  const ended = job["end-time"];
  return begun > 0 ? duration((ended > 0 ? ended : Math.max(now(), begun)) - begun) : "–";
}
