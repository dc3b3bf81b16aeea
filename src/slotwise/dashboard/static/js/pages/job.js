// One job: what it is doing, why it waits or ended, what it has, its parts, its output.
import { ApiError, request } from "../api.js";
import { confirm, toast } from "../dialogs.js";
import { h } from "../dom.js";
import { when } from "../format.js";
import { badge, elapsed, isFinal, isPipeline, staleness, state } from "../parts.js";
import { href } from "../router.js";
import { may } from "../session.js";
import { configurationTab, eventsTab, stagesTab } from "./job_records.js";
import { logsTab } from "./job_logs.js";
import { regionsTab, slotsTab, summaryTab } from "./job_summary.js";

const TABS = [
  { key: "summary", text: "Summary", view: summaryTab },
  { key: "regions", text: "Regions", view: regionsTab, when: (job) => isPipeline(job) },
  { key: "slots", text: "Slots", view: slotsTab },
  { key: "stages", text: "Stages", view: stagesTab },
  { key: "logs", text: "Logs", view: logsTab },
  { key: "events", text: "Events", view: eventsTab },
  { key: "configuration", text: "Configuration", view: configurationTab },
];

export function jobPage(route, context) {
  const id = route.path[1];
  const base = `/v1/jobs/${encodeURIComponent(id)}`;
  const topics = [`job:${id}`];
  const details = context.query(base, { topics: [...topics, "jobs"] });
  const made = new Map();
  const page = {
    id,
    base,
    details,
    redraw: context.redraw,
    /** Asked for only once a tab needs it. */
    query(name, path, options = {}) {
      if (!made.has(name)) made.set(name, context.query(path, { topics, ...options }));
      return made.get(name);
    },
    /** All events that are kept; later ones are added. */
    events() {
      return page.query("events", (before) => `${base}/events?after=${before?.events.at(-1)?.seq ?? 0}`, {
        merge: (before, answer) => ({ events: [...(before?.events ?? []), ...answer.events].slice(-5000) }),
      });
    },
  };
  return {
    title: () => details.data?.name ?? id,
    view: (now) => {
      const missing = state(details, `job ${id}`);
      if (missing) {
        return [h("h1", {}, id), missing, h("p", {}, h("a", { href: href(["jobs"]) }, "All jobs"))];
      }
      const job = details.data;
      const tabs = TABS.filter((tab) => tab.when?.(job) ?? true);
      const tab = tabs.find(({ key }) => key === (now.path[2] ?? "summary")) ?? tabs[0];
      return [
        head(page, job),
        staleness(details),
        h(
          "nav",
          { class: "tabs", "aria-label": "Parts of the job" },
          tabs.map(({ key, text }) =>
            h(
              "a",
              { href: href(["jobs", id, ...(key === "summary" ? [] : [key])]), "aria-current": key === tab.key ? "page" : null },
              text,
            ),
          ),
        ),
        h("div", { key: `tab:${tab.key}` }, tab.view(page, job, now)),
      ];
    },
  };
}

function head(page, job) {
  const final = isFinal(job);
  return h(
    "div",
    { class: "job-head" },
    h(
      "div",
      { class: "job-title" },
      h("h1", {}, job.name),
      badge(job.phase),
      h(
        "p",
        { class: "quiet" },
        h("span", { class: "mono" }, job.jid),
        " · started ",
        when(job["start-time"]),
        final ? " · took " : " · for ",
        elapsed(job),
      ),
    ),
    h(
      "div",
      { class: "buttons" },
      job["spark-ui"] &&
        !final &&
        h(
          "a",
          { class: "button", href: `${page.base}/spark-ui/`, target: "_blank", rel: "noopener", id: "spark-ui" },
          "Spark UI ↗",
        ),
      !final &&
        may("submitter") &&
        h(
          "button",
          { type: "button", class: "button danger", disabled: job.phase === "CANCELLING", onclick: () => cancel(page, job) },
          job.phase === "CANCELLING" ? "Cancelling …" : "Cancel",
        ),
    ),
  );
}

async function cancel(page, job) {
  const sure = await confirm({
    title: `Cancel ${job.name}?`,
    text: "Its driver and executors are ended and its slots given back. What it has not finished is lost.",
    yes: "Cancel the job",
    no: "Leave it running",
  });
  if (!sure) return;
  try {
    await request(`${page.base}?mode=cancel`, { method: "PATCH" });
    toast("The job is being cancelled.");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    toast(`Not cancelled: ${error.message}`, "bad");
  }
  page.details.refetch();
}
