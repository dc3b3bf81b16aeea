// All jobs, by state and text, a page at a time.
import { h } from "../dom.js";
import { count, plural, when } from "../format.js";
import { badge, elapsed, executors, jobLink, panel, staleness, state, table } from "../parts.js";
import { current, go, href, replace } from "../router.js";

const PAGE = 50;
const LIVING = "CREATED,WAITING_FOR_RESOURCES,DEPLOYING,RUNNING,RECONCILING,RESTARTING,FAILING,CANCELLING";
const STATES = [
  ["", "All states", ""],
  ["living", "Running or waiting", LIVING],
  ["ended", "Ended", "FINISHED,FAILED,CANCELED"],
  ["WAITING_FOR_RESOURCES", "Waiting for resources", "WAITING_FOR_RESOURCES"],
  ["RUNNING", "Running", "RUNNING"],
  ["FINISHED", "Finished", "FINISHED"],
  ["FAILED", "Failed", "FAILED"],
  ["CANCELED", "Cancelled", "CANCELED"],
];
const COLUMNS = [
  { name: "Name" },
  { name: "Id" },
  { name: "State" },
  { name: "Started" },
  { name: "Duration", number: true },
  { name: "Executors", number: true },
  { name: "Reason" },
];

function address({ query }) {
  const choice = STATES.find(([key]) => key === (query.get("state") ?? ""));
  const given = new URLSearchParams({ order: "-start", limit: PAGE, offset: (pageOf(query) - 1) * PAGE });
  if (choice?.[2]) given.set("state", choice[2]);
  if (query.get("q")) given.set("name", query.get("q"));
  return `/v1/jobs/overview?${given}`;
}

const pageOf = (query) => Math.max(1, Number.parseInt(query.get("page") ?? "1", 10) || 1);

export function jobsPage(route, context) {
  const jobs = context.query(address(route), { topics: ["jobs"] });
  let timer = 0;
  const change = (changes) => {
    const { query } = current();
    replace(["jobs"], { state: query.get("state"), q: query.get("q"), ...changes, page: "" });
  };
  const type = (event) => {
    const text = event.target.value;
    clearTimeout(timer);
    timer = setTimeout(() => change({ q: text.trim() }), 200);
  };
  return {
    title: () => "Jobs",
    close: () => clearTimeout(timer),
    view: (now) => {
      jobs.move(address(now));
      return [
        h("h1", {}, "Jobs"),
        h(
          "div",
          { class: "filters", role: "search" },
          h("input", {
            type: "search",
            class: "field",
            placeholder: "Name or id",
            "aria-label": "Filter by name or id",
            "data-search": true,
            value: now.query.get("q") ?? "",
            oninput: type,
          }),
          h(
            "select",
            {
              class: "field",
              "aria-label": "Filter by state",
              value: now.query.get("state") ?? "",
              onchange: (event) => change({ state: event.target.value }),
            },
            STATES.map(([key, text]) => h("option", { value: key }, text)),
          ),
        ),
        staleness(jobs),
        state(jobs, "the jobs") ?? panel(plural(jobs.data.total, "job"), {}, rows(jobs.data, now.query), pages(jobs.data, now)),
      ];
    },
  };
}

function rows(answer, query) {
  const filtered = query.get("q") || query.get("state");
  return table(
    "Jobs",
    COLUMNS,
    answer.jobs.map((job) => ({
      key: job.jid,
      cells: [
        jobLink(job.jid, job.name),
        h("span", { class: "mono small" }, job.jid),
        badge(job.phase),
        when(job["start-time"]),
        elapsed(job),
        executors(job),
        h("span", { class: "clip", title: job.reason }, job.reason || "–"),
      ],
    })),
    {
      empty: filtered
        ? ["No job fits. ", h("a", { href: href(["jobs"]) }, "Show all jobs")]
        : ["No job yet. Start one with ", h("code", {}, "slotwise submit job.py"), "."],
    },
  );
}

function pages({ total }, { query }) {
  const page = pageOf(query);
  const last = Math.max(1, Math.ceil(total / PAGE));
  if (last === 1 && page === 1) return null;
  const to = (number) => () => go(["jobs"], { state: query.get("state"), q: query.get("q"), page: number > 1 ? number : "" });
  return h(
    "nav",
    { class: "pages", "aria-label": "Pages of the list" },
    h("button", { type: "button", class: "button", disabled: page <= 1, onclick: to(page - 1) }, "Newer"),
    h("span", {}, `Page ${count(page)} of ${count(last)}`),
    h("button", { type: "button", class: "button", disabled: page >= last, onclick: to(page + 1) }, "Older"),
  );
}
