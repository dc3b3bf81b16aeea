// What the master runs with, and its own log.
import { h } from "../dom.js";
import { panel, staleness, state, table } from "../parts.js";
import { go } from "../router.js";
import { logPanel } from "./job_logs.js";

export function configurationPage(_, context) {
  const config = context.query("/v1/jobmanager/config", {});
  const environment = context.query("/v1/jobmanager/environment", {});
  const logs = context.query("/v1/jobmanager/logs", {});
  const search = { text: "" };
  return {
    title: () => "Configuration",
    view: (now) => [
      h("h1", {}, "Configuration"),
      h(
        "div",
        { class: "filters", role: "search" },
        h("input", {
          type: "search",
          class: "field",
          placeholder: "Key or value",
          "aria-label": "Filter by key or value",
          "data-search": true,
          oninput: (event) => {
            search.text = event.target.value.trim().toLowerCase();
            context.redraw();
          },
        }),
      ),
      staleness(config),
      panel("The master's settings", {}, state(config, "the settings") ?? pairs(config.data, search.text)),
      panel("Its process", {}, state(environment, "the environment") ?? pairs(named(environment.data), search.text)),
      logsOf(logs, now.path[1]),
    ],
  };
}

/** The names of the API are Flink's, and speak of a JVM. */
const named = ({ jvm, classpath }) => ({
  interpreter: jvm.version,
  architecture: jvm.arch,
  options: jvm.options,
  "module path": classpath,
});

function logsOf(logs, chosen) {
  const missing = state(logs, "the master's logs");
  if (missing) return panel("Logs", {}, missing);
  const names = logs.data.logs.map((log) => log.name);
  const none = "This master writes its log to where it was started, not to a file that it knows of.";
  if (!names.length) return panel("Logs", {}, h("p", { class: "quiet pad" }, none));
  const name = names.includes(chosen) ? chosen : names[0];
  return logPanel(names, name, "/v1/jobmanager", false, (other) => go(["configuration", other]));
}

/** Any JSON as a table of keys and values; lists of {key, value} as Flink has them are taken for what they are. */
export function pairs(value, text = "") {
  const rows = flatten(value, "").filter(([key, shown]) => `${key} ${shown}`.toLowerCase().includes(text));
  return table(
    "Settings",
    [{ name: "Key" }, { name: "Value" }],
    rows.map(([key, shown]) => ({ key, cells: [h("code", { class: "key" }, key), h("span", { class: "mono wrap" }, shown)] })),
    { empty: text ? "Nothing fits." : "Nothing is set." },
  );
}

function flatten(value, prefix) {
  if (Array.isArray(value)) {
    if (!value.length && !prefix) return [];
    if (value.length && value.every((item) => item && typeof item === "object" && "key" in item && "value" in item)) {
      return value.flatMap((item) => flatten(item.value, join(prefix, item.key)));
    }
    if (value.every((item) => item === null || typeof item !== "object")) return [[prefix, value.join(", ") || "–"]];
    return value.flatMap((item, index) => flatten(item, `${prefix}[${index}]`));
  }
  if (value !== null && typeof value === "object") {
    return Object.entries(value).flatMap(([key, inner]) => flatten(inner, join(prefix, key)));
  }
  return [[prefix, value === null || value === "" ? "–" : String(value)]];
}

const join = (prefix, key) => (prefix ? `${prefix}.${key}` : key);
