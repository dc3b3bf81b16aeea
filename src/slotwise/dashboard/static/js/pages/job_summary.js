// What a job is doing and why: the first tab, its regions, and its slots.
import { ApiError, request } from "../api.js";
import { toast } from "../dialogs.js";
import { h } from "../dom.js";
import { count, duration, plural, size, when, words } from "../format.js";
import { graph } from "../graph.js";
import { badge, executors, facts, isFinal, isPipeline, panel, staleness, state, table, workerLink } from "../parts.js";
import { may } from "../session.js";
import { timeline } from "../timeline.js";

const UNBOUNDED = 2 ** 31 - 1;
const ENDED = { FINISHED: "The job has finished", FAILED: "The job has failed", CANCELED: "The job was cancelled" };

export function summaryTab(page, job) {
  const events = page.events();
  const final = isFinal(job);
  const failures = page.query("exceptions", `${page.base}/exceptions`);
  const rescales = page.query("rescales", `${page.base}/rescales/history`);
  return [
    final ? ended(job) : waiting(page, job),
    h(
      "div",
      { class: "columns" },
      panel("About", {}, about(job)),
      panel("Executors", {}, executorFacts(job), !final && may("submitter") && !isPipeline(job) && scaleForm(page, job)),
    ),
    panel("States", {}, state(events, "the states") ?? timeline(events.data.events), staleness(events)),
    panel("Failures and restarts", {}, state(failures, "the failures") ?? failureList(failures.data, job)),
    panel("Changes of size", {}, state(rescales, "the changes of size") ?? rescaleList(rescales.data)),
  ];
}

function about(job) {
  const code = job["exit-code"];
  return facts([
    ["Program", h("code", { class: "wrap" }, job.program)],
    job["app-id"] && ["Spark application", h("code", { class: "wrap" }, job["app-id"])],
    ["Started", when(job["start-time"])],
    ["Ended", when(job["end-time"])],
    code !== null && code !== undefined && ["Exit code", String(code)],
    job["tasks-done"] !== undefined && ["Tasks done", count(job["tasks-done"])],
    job["driver-starts"] !== undefined && ["Driver starts", count(job["driver-starts"])],
  ]);
}

function ended(job) {
  const kind = job.state === "FAILED" ? "bad" : job.state === "FINISHED" ? "ok" : "off";
  const text = job.reason || (job.state === "FINISHED" ? "The program has ended without an error." : "");
  return h(
    "section",
    { class: `callout ${kind}`, "aria-label": "How it ended" },
    h("h2", {}, ENDED[job.state]),
    text && h("p", { class: "wrap" }, text),
    job["log-tail"].length > 0 && h("pre", { class: "tail", tabindex: 0, "aria-label": "Last lines of its output" }, job["log-tail"].join("\n")),
  );
}

/** Why a job has not (all of) what it requires, in the ResourceManager's words. */
function waiting(page, job) {
  const explain = page.query("explain", `${page.base}/explain`, { topics: [`job:${page.id}`, "resources", "workers"] });
  if (explain.data === undefined) return state(explain, "why the job has what it has");
  const { missing, summary, pending } = explain.data;
  const ahead = explain.data["jobs-ahead"];
  if (!missing.length && job.phase === "RUNNING") return null;
  const title = {
    WAITING_FOR_RESOURCES: "Why it is waiting",
    CREATED: "Why it is waiting",
    RUNNING: "It runs with less than it asks for",
  };
  return h(
    "section",
    { class: `callout ${missing.length ? "warn" : "off"}`, "aria-label": "Why it has what it has", id: "explanation" },
    h("h2", {}, title[job.phase] ?? `The job is ${words(job.phase)}`),
    !missing.length && h("p", {}, sentence(summary)),
    missing.map((item) => [
      h("p", {}, h("strong", {}, `${count(item.count)} × ${size(item.resource)} missing: `), `${item.detail}.`),
      h("p", { class: "help" }, "What helps: ", item.help, "."),
    ]),
    pending > 0 && h("p", {}, `${plural(pending, "slot")} asked for, and not confirmed by a worker yet.`),
    missing.length > 0 && ahead > 0 && h("p", {}, `${plural(ahead, "job")} that declared earlier ${ahead === 1 ? "is" : "are"} served before it.`),
  );
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

const atMost = (job) => (job["max-executors"] === null ? "any number" : count(job["max-executors"]));

function executorFacts(job) {
  return facts([
    ["Now", executors(job)],
    ["Allowed", `${count(job["min-executors"])} to ${atMost(job)}`],
    job.executors && !isFinal(job) && ["Launched", `${count(job.executors.launched)} living, ${count(job.executors.launched_in_all)} in all`],
    job.restarts !== undefined && ["Restarts", count(job.restarts)],
  ]);
}

function scaleForm(page, job) {
  const submit = async (event) => {
    event.preventDefault();
    const { least, most } = event.target.elements;
    const low = Number(least.value);
    const high = most.value === "" ? UNBOUNDED : Number(most.value);
    const problem = event.target.querySelector(".problem");
    if (low > high) {
      problem.textContent = "At least cannot be more than at most.";
      least.focus();
      return;
    }
    problem.textContent = "";
    const parallelism = { lowerBound: low, upperBound: high };
    try {
      await request(`${page.base}/resource-requirements`, {
        method: "PUT",
        body: { jobVertexResourceRequirements: { application: { parallelism } } },
      });
      toast("The new bounds are in force.");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      problem.textContent = `Not changed: ${error.message}.`;
    }
    page.details.refetch();
  };
  const field = (name, text, value, least) => [
    h("label", { for: `scale-${name}` }, text),
    h("input", { id: `scale-${name}`, name, type: "number", min: least, max: UNBOUNDED - 1, step: 1, class: "field short", value, required: name === "least" }),
  ];
  return h(
    "form",
    { class: "scale", onsubmit: submit, "aria-label": "How many executors the job may have" },
    field("least", "At least", String(job["min-executors"]), 0),
    field("most", "at most", job["max-executors"] === null ? "" : String(job["max-executors"]), 1),
    h("button", { type: "submit", class: "button" }, "Scale"),
    h("p", { class: "problem", role: "alert" }),
    h("p", { class: "quiet small" }, "Empty: no bound. The driver goes on; executors that go hand their blocks on first."),
  );
}

function failureList(answer, job) {
  const { entries, truncated } = answer.exceptionHistory;
  if (!entries.length) {
    return h("p", { class: "quiet pad" }, job.restarts ? "The failures are not kept." : "None.");
  }
  return [
    h(
      "ul",
      { class: "failures" },
      entries.map((entry, index) =>
        h(
          "li",
          { key: `${entry.timestamp}:${index}` },
          h("p", {}, when(entry.timestamp), " ", h("strong", {}, entry.exceptionName), entry.taskName && ` in ${entry.taskName}`, entry.endpoint && ` on ${entry.endpoint}`),
          entry.stacktrace.trim().includes("\n")
            ? h("details", {}, h("summary", {}, "What it said"), h("pre", { class: "tail" }, entry.stacktrace))
            : h("p", {}, entry.stacktrace),
        ),
      ),
    ),
    truncated && h("p", { class: "quiet pad" }, "There were more before."),
  ];
}

function rescaleList({ rescales }) {
  const columns = [
    { name: "Start" },
    { name: "Cause" },
    { name: "From", number: true },
    { name: "To", number: true },
    { name: "State" },
    { name: "Took", number: true },
  ];
  const rows = [...rescales].reverse().map((rescale) => {
    const [vertex] = Object.values(rescale.vertices);
    return {
      key: rescale.rescaleAttemptId,
      cells: [
        when(rescale.startTimestampInMillis),
        words(rescale.triggerCause),
        count(vertex.preRescaleParallelism),
        count(vertex.postRescaleParallelism ?? vertex.desiredParallelism),
        words(rescale.terminalState ?? "under way"),
        rescale.durationInMillis === undefined ? "–" : duration(rescale.durationInMillis),
      ],
    };
  });
  return table("Changes of size", columns, rows, { empty: "Its number of executors has not changed." });
}

// ------------------------------------------------------------------------------------------------ regions

export function regionsTab(page, job) {
  const plan = page.query("plan", `${page.base}/plan`);
  const columns = [
    { name: "Region" },
    { name: "State" },
    { name: "Executors", number: true },
    { name: "Attempt", number: true },
    { name: "Started" },
    { name: "Took", number: true },
    { name: "Reason" },
  ];
  const rows = job.vertices.map((vertex) => ({
    key: vertex.id,
    cells: [
      h("span", { title: vertex.name }, vertex.id),
      badge(vertex.status),
      count(vertex.parallelism),
      count(vertex.attempt),
      when(vertex["start-time"]),
      duration(vertex.duration),
      h("span", { class: "wrap" }, vertex.reason || "–"),
    ],
  }));
  return [
    panel("Graph", {}, state(plan, "the graph") ?? graph(plan.data.plan.nodes, job.vertices)),
    panel(plural(job.vertices.length, "region"), {}, table("Regions", columns, rows)),
  ];
}

// ------------------------------------------------------------------------------------------------ slots

export function slotsTab(page, job) {
  if (job.declared === undefined) {
    return panel("Slots", {}, h("p", { class: "quiet pad" }, "The job has ended and holds nothing."));
  }
  const sizes = [{ name: "Size" }, { name: "Number", number: true }];
  const lines = (items) => items.map((item, index) => ({ key: index, cells: [size(item.resource), count(item.count)] }));
  const lacking = job.missing.map((item, index) => ({
    key: index,
    cells: [size(item.resource), count(item.count), h("span", { class: "wrap" }, item.detail)],
  }));
  const held = job.held.map((slot) => ({
    key: slot.allocation,
    cells: [
      slot.use ?? h("span", { class: "quiet" }, "idle"),
      size(slot.resource),
      workerLink(slot.worker),
      h("span", { class: "mono small" }, slot.allocation),
    ],
  }));
  return [
    h(
      "div",
      { class: "columns" },
      panel("Declared", {}, table("Declared", sizes, lines(job.declared), { empty: "Nothing is declared now." })),
      panel("Lacking", {}, table("Lacking", [...sizes, { name: "Why" }], lacking, { empty: "Nothing is lacking." })),
    ),
    panel(
      `Held: ${plural(job.held.length, "slot")}`,
      {},
      table("Held slots", [{ name: "Use" }, { name: "Size" }, { name: "Worker" }, { name: "Slot" }], held, { empty: "It holds no slot." }),
    ),
  ];
}
