// The states of a job over time, from its events.
import { now } from "./api.js";
import { h } from "./dom.js";
import { clock, duration, when, words } from "./format.js";
import { badge, kindOf, table } from "./parts.js";

/** Events of a job → [{state, from, to, reason}] in Unix milliseconds; `to` of the last is null while it goes on. */
export function spans(events) {
  const found = [];
  for (const event of events) {
    const begun = event.name === "submitted" ? "CREATED" : event.name === "job-state" ? event.fields.state : null;
    if (begun === null) continue;
    const at = event.unix_s * 1000;
    if (found.length) found.at(-1).to = at;
    found.push({ state: begun, from: at, to: null, reason: event.fields.reason ?? "", seq: event.seq });
  }
  const last = found.at(-1);
  if (last && ["FINISHED", "FAILED", "CANCELED"].includes(last.state)) last.to = last.from;
  return found;
}

/** The bar and the list below it. */
export function timeline(events) {
  const found = spans(events);
  if (!found.length) return h("p", { class: "quiet pad" }, "No event of this job has been kept.");
  const begin = found[0].from;
  const end = found.at(-1).to ?? Math.max(now(), found.at(-1).from);
  const whole = Math.max(1, end - begin);
  return [
    h(
      "div",
      { class: "timeline", role: "img", "aria-label": found.map((span) => words(span.state)).join(", then ") },
      found
        .filter((span) => (span.to ?? end) > span.from)
        .map((span) =>
          h("span", {
            key: span.seq,
            class: kindOf(span.state),
            style: { "flex-grow": String((Math.max(0, (span.to ?? end) - span.from) / whole).toFixed(4)) },
            title: `${words(span.state)}: ${duration((span.to ?? end) - span.from)}, from ${clock(span.from)}`,
          }),
        ),
    ),
    h("div", { class: "timeline-ends" }, h("span", {}, when(begin)), h("span", {}, when(end))),
    table(
      "States",
      [{ name: "State" }, { name: "Since" }, { name: "For", number: true }, { name: "Reason" }],
      found.map((span) => ({
        key: span.seq,
        cells: [badge(span.state), when(span.from), spanLength(span, end), h("span", { class: "wrap" }, span.reason || "–")],
      })),
    ),
  ];
}

const spanLength = (span, end) => (span.to === span.from ? "–" : duration((span.to ?? end) - span.from));
