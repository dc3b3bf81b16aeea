// The slot map as a page, and as a panel of the overview.
import { colourOf, darkScheme, keepColours } from "../colours.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { panel, staleness, state } from "../parts.js";
import { href } from "../router.js";
import { slotMap } from "../slotmap.js";

const LEGEND = 30;
/** The choice lasts as long as the page is open. */
const shown = { by: "memory", only: null };

/** GET /v1/slots, which has all slots of the cluster: asked for once a second at most. */
export const slotsQuery = (context) =>
  context.query("/v1/slots", { topics: ["workers", "resources", "jobs"], atMostEvery: 1_000 });

export function slotsPage(_, context) {
  const slots = slotsQuery(context);
  return {
    title: () => "Slots",
    view: () => [
      h("h1", {}, "Slots"),
      staleness(slots),
      state(slots, "the slots") ?? mapPanel(slots, context, { legend: true }),
      h(
        "p",
        { class: "quiet small" },
        "Each bar is a worker, each block in it a slot of one job, drawn to size. Hatched is free; pale and dashed is " +
          "asked for and not confirmed. Click a slot for its job, a free part for its worker.",
      ),
    ],
  };
}

export function mapPanel(slots, context, { legend }) {
  const { data } = slots;
  const numbers = new Map();
  for (const worker of data.workers) {
    for (const slot of worker.slots) numbers.set(slot[1], (numbers.get(slot[1]) ?? 0) + 1);
  }
  keepColours(new Set(data.jobs.map((job) => job.id)));
  const choose = (by) => () => {
    shown.by = by;
    context.redraw();
  };
  const way = (by, text) =>
    h("button", { type: "button", class: "segment", "aria-pressed": String(shown.by === by), onclick: choose(by) }, text);
  const slotsInAll = data.workers.reduce((sum, worker) => sum + worker.slots.length, 0);
  return panel(
    `Slot map: ${plural(data.workers.length, "worker")}, ${plural(slotsInAll, "slot")}`,
    {
      actions: h(
        "div",
        { class: "segments", role: "group", "aria-label": "Sizes by" },
        way("memory", "Memory"),
        way("cpu", "CPU"),
      ),
    },
    data.workers.length || data.pending.length
      ? h("div", { class: "pad" }, h(slotMap, { data, by: shown.by, only: shown.only }))
      : h("p", { class: "quiet pad" }, "No worker is registered."),
    legend && data.jobs.length > 0 && legendOf(data, numbers, context),
  );
}

function legendOf(data, numbers, context) {
  const point = (job) => () => {
    if (shown.only === job) return;
    shown.only = job;
    context.redraw();
  };
  const jobs = data.jobs.map((job, index) => ({ ...job, slots: numbers.get(index) ?? 0 }));
  jobs.sort((a, b) => b.slots - a.slots || (a.id < b.id ? -1 : 1));
  return h(
    "ul",
    { class: "legend", "aria-label": "Jobs on the map", onpointerleave: point(null) },
    jobs.slice(0, LEGEND).map((job) =>
      h(
        "li",
        { key: job.id },
        h(
          "a",
          {
            href: href(["jobs", job.id]),
            onpointerenter: point(job.id),
            onfocus: point(job.id),
            onblur: point(null),
            title: job.id,
          },
          h("span", { class: "swatch", style: { background: colourOf(job.id, darkScheme.matches) } }),
          h("span", { class: "clip" }, job.name),
          h("span", { class: "quiet" }, count(job.slots)),
        ),
      ),
    ),
    jobs.length > LEGEND && h("li", { class: "quiet" }, `and ${plural(jobs.length - LEGEND, "more job")}`),
  );
}
