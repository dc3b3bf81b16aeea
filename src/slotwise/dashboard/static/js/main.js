// The frame: who is logged in, which page is open, the state of the connection, and keys.
import { ApiError } from "./api.js";
import { help, toast } from "./dialogs.js";
import { h, render } from "./dom.js";
import { clock } from "./format.js";
import { connection, Query } from "./live.js";
import { configurationPage } from "./pages/configuration.js";
import { jobPage } from "./pages/job.js";
import { jobsPage } from "./pages/jobs.js";
import { loginView } from "./pages/login.js";
import { overviewPage } from "./pages/overview.js";
import { slotsPage } from "./pages/slots.js";
import { workerPage } from "./pages/worker.js";
import { workersPage } from "./pages/workers.js";
import { current, go, href } from "./router.js";
import { login, logout, resume, session } from "./session.js";

const NAVIGATION = [
  { path: [], text: "Overview", key: "o" },
  { path: ["jobs"], text: "Jobs", key: "j" },
  { path: ["slots"], text: "Slots", key: "s" },
  { path: ["workers"], text: "Workers", key: "w" },
  { path: ["configuration"], text: "Configuration", key: "c" },
];
const SHORTCUTS = [
  ...NAVIGATION.map(({ text, key }) => ({ keys: `g ${key}`, text: `Go to: ${text}` })),
  { keys: "/", text: "Search on this page" },
  { keys: "?", text: "This list" },
  { keys: "Esc", text: "Leave a search or a dialog" },
];
const PAGES = {
  "": overviewPage,
  jobs: (route, context) => (route.path.length > 1 ? jobPage : jobsPage)(route, context),
  slots: slotsPage,
  workers: (route, context) => (route.path.length > 1 ? workerPage : workersPage)(route, context),
  configuration: configurationPage,
};

const root = document.getElementById("app");
let page = null;
let pageKey = "";
let drawing = false;
/** "starting": not known yet who is there; "out": nobody; "in". */
let access = "starting";
let message = "";

function redraw() {
  if (drawing) return;
  drawing = true;
  // Browsers hold animation frames back while nobody looks: then nothing needs to be drawn either.
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

function openPage(route) {
  // A job or a worker is a page of its own; what comes behind is a part of the page.
  const key = route.path.slice(0, ["jobs", "workers"].includes(route.path[0]) ? 2 : 1).join("/");
  if (page !== null && key === pageKey) return;
  closePage();
  pageKey = key;
  const queries = [];
  const context = {
    redraw,
    query(path, options) {
      const query = new Query(path, { ...options, onchange: redraw });
      queries.push(query);
      return query;
    },
  };
  const make = PAGES[route.path[0] ?? ""] ?? nowherePage;
  page = make(route, context);
  page.queries = queries;
}

function closePage() {
  page?.queries.forEach((query) => query.close());
  page?.close?.();
  page = null;
}

function nowherePage(route) {
  return {
    title: () => "Not found",
    view: () => [
      h("h1", {}, "There is no such page"),
      h("p", {}, `Nothing is at “${route.path.join("/")}”. `, h("a", { href: href([]) }, "To the overview")),
    ],
  };
}

function draw() {
  if (access !== "in") {
    closePage();
    document.title = "Slotwise";
    const content = access === "out" ? loginView({ message, enter }) : [h("p", { class: "quiet" }, "Loading …")];
    render(root, header(null), banner(), h("main", { id: "main", tabindex: -1, class: "narrow" }, content));
    return;
  }
  const route = current();
  openPage(route);
  const content = page.view(route);
  document.title = `${page.title(route)} – Slotwise`;
  render(
    root,
    header(route),
    banner(),
    h("main", { id: "main", tabindex: -1, key: `page:${pageKey}` }, content),
    h("footer", { class: "footer" }, h("span", {}, "Times are local; hover for UTC."), " ", keysButton()),
  );
}

const keysButton = () =>
  h("button", { type: "button", class: "link", onclick: () => help(SHORTCUTS) }, "Keys ", h("kbd", {}, "?"));

function header(route) {
  const here = route?.path[0] ?? "";
  return h(
    "header",
    { class: "topbar" },
    h("a", { class: "brand", href: href([]) }, "Slotwise"),
    route &&
      h(
        "nav",
        { "aria-label": "Pages" },
        NAVIGATION.map(({ path, text }) =>
          h("a", { href: href(path), "aria-current": (path[0] ?? "") === here ? "page" : null }, text),
        ),
      ),
    route && h("div", { class: "who" }, light(), h("span", { class: "name" }, `${session.name} (${session.role})`),
      h("button", { type: "button", class: "link", onclick: leave }, "Log out")),
  );
}

const LIGHTS = {
  live: ["ok", "Live"],
  polling: ["warn", "Polling"],
  lost: ["bad", "Offline"],
  idle: ["off", "–"],
};

function light() {
  const [kind, text] = LIGHTS[connection.state];
  const title = { polling: "No events come through; everything is asked for again every few seconds." };
  return h("span", { class: `light ${kind}`, title: title[connection.state], "data-connection": connection.state }, text);
}

function banner() {
  const lost = connection.state === "lost";
  return h(
    "div",
    { class: "live-region", role: "status", "aria-live": "polite" },
    lost &&
      h(
        "p",
        { class: "banner" },
        `Connection lost, trying again. What you see is from ${clock(connection.since)} or before.`,
      ),
  );
}

async function enter(credentials) {
  await login(credentials);
  message = "";
  if (location.pathname !== "/") history.replaceState(null, "", `/${location.pathname === "/login" ? "" : location.hash}`);
  access = "in";
  connection.start();
  draw();
}

async function leave() {
  try {
    await logout();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // Without an answer the session is still there, and saying anything else would be a lie.
    if (error.status !== 401) {
      toast(`Not logged out: ${error.message}`, "bad");
      return;
    }
  }
  out("");
}

function out(text) {
  access = "out";
  message = text;
  connection.stop();
  redraw();
}

// ------------------------------------------------------------------------------------------------ keys

let prefix = 0;

function onKey(event) {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Escape" && typing) {
    typing.blur();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || access !== "in") return;
  if (document.querySelector("dialog[open]")) return;
  const search = document.querySelector("[data-search]");
  if (event.key === "/" && search) {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "?") {
    event.preventDefault();
    help(SHORTCUTS);
  } else if (event.key === "g") {
    prefix = Date.now();
  } else if (Date.now() - prefix < 1_500) {
    const entry = NAVIGATION.find(({ key }) => key === event.key);
    prefix = 0;
    if (entry) go(entry.path);
  }
}

// ------------------------------------------------------------------------------------------------ start

async function start() {
  addEventListener("keydown", onKey);
  addEventListener("hashchange", () => {
    const before = pageKey;
    if (access === "in") draw();
    // Somebody went to another page: so does the focus, and a screen reader begins to read there.
    if (pageKey !== before) {
      scrollTo(0, 0);
      document.getElementById("main").focus({ preventScroll: true });
    }
  });
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  connection.addEventListener("change", redraw);
  connection.addEventListener("unauthorized", () => access === "in" && out("Your session has ended. Log in to go on."));
  // Ages and durations go on by themselves.
  setInterval(() => !document.hidden && access === "in" && redraw(), 1_000);
  document.addEventListener("visibilitychange", () => !document.hidden && redraw());
  const code = location.pathname === "/login" && new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) {
    // It works once, and has no business in the history.
    history.replaceState(null, "", "/login");
    try {
      await enter({ code });
      return;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      out(`This link does not work: ${error.message}. Run “slotwise dashboard --open” again, or give a token.`);
      return;
    }
  }
  await begin();
}

async function begin() {
  try {
    if (await resume()) {
      access = "in";
      connection.start();
      draw();
    } else out("");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    render(root, header(null), h("main", { id: "main", tabindex: -1 }, unreachable(error)));
    setTimeout(begin, 2_000);
  }
}

const unreachable = (error) =>
  h("p", { class: "banner", role: "alert" }, `Not connected: ${error.message}. Trying again.`);

start();
