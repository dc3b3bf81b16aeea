// The output of a job's processes.
import { h } from "../dom.js";
import { panel, state } from "../parts.js";
import { go } from "../router.js";
import { logView } from "../logview.js";

const TAIL_BYTES = 1_000_000;

/** The one that people look for: the newest driver's output, and of a failed job what it said of it. */
export function mostWanted(names, failed) {
  const ending = failed ? ".err" : ".out";
  const drivers = names.filter((name) => name.startsWith("driver-") && name.endsWith(ending));
  const number = (name) => Number.parseInt(name.slice("driver-".length), 10) || 0;
  drivers.sort((a, b) => number(b) - number(a));
  return drivers[0] ?? names[0];
}

export function logsTab(page, job, { path }) {
  const logs = page.query("logs", `${page.base}/logs`, { poll: 5_000 });
  const missing = state(logs, "the logs");
  if (missing) return missing;
  const { logs: names } = logs.data;
  if (!names.length) return panel("Logs", {}, h("p", { class: "quiet pad" }, "No process of this job has written anything yet."));
  const name = path[3] && names.includes(path[3]) ? path[3] : mostWanted(names, job.state === "FAILED");
  return logPanel(names, name, page.base, true, (chosen) => go(["jobs", page.id, "logs", chosen]));
}

/** A choice of files and the log that is chosen. `ends`: see logview.js. */
export function logPanel(names, name, base, ends, choose) {
  return panel(
    "Logs",
    {
      actions: h(
        "select",
        { class: "field", "aria-label": "Which log", value: name, onchange: (event) => choose(event.target.value) },
        names.map((option) => h("option", { key: option, value: option, selected: option === name }, option)),
      ),
    },
    h(logView, { address: `${base}/logs/${encodeURIComponent(name)}`, label: `Log ${name}`, tail: TAIL_BYTES, ends }),
  );
}
