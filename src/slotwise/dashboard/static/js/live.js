// What a page shows, kept fresh: the event stream says what has changed, and that is fetched again. Without the stream
// (a proxy that does not let it through) everything is asked for again now and then.
import { ApiError, json, onOutcome } from "./api.js";

const POLL_MS = 4_000;
/** With events: only for what no event tells, such as the age of heartbeats. */
const SLOW_POLL_MS = 15_000;
/** However often something changes, it is fetched no more often than this. */
const AT_MOST_EVERY_MS = 400;
const RETRY_MS = [500, 1_000, 2_000, 3_000];

/** "live": events come; "polling": they do not, calls do; "lost": nothing answers; "idle": nobody is logged in. */
class Connection extends EventTarget {
  state = "idle";
  since = Date.now();
  #source = null;
  #queries = new Set();
  #retry = 0;
  #timer = 0;

  constructor() {
    super();
    onOutcome((outcome) => this.#heard(outcome));
    // A page that nobody sees gives its connection back: a browser has six of them for all its pages together.
    document.addEventListener("visibilitychange", () => {
      if (this.state === "idle") return;
      if (document.hidden) this.#close();
      else {
        this.#listen();
        this.refresh();
      }
    });
    setInterval(() => this.#poll(), 1_000);
  }

  /** Somebody is logged in. */
  start() {
    if (this.state !== "idle") return;
    this.#set("polling");
    this.#listen();
  }

  /** Nobody is. */
  stop() {
    this.#close();
    clearTimeout(this.#timer);
    this.#set("idle");
  }

  add(query) {
    this.#queries.add(query);
  }

  remove(query) {
    this.#queries.delete(query);
  }

  /** Ask for everything again. */
  refresh() {
    this.#queries.forEach((query) => query.refetch());
  }

  #set(state) {
    if (this.state === state) return;
    this.state = state;
    this.since = Date.now();
    this.dispatchEvent(new Event("change"));
  }

  #listen() {
    if (this.#source !== null || document.hidden) return;
    const source = (this.#source = new EventSource("/v1/events"));
    let broken = false;
    source.addEventListener("open", () => {
      clearTimeout(this.#timer);
      this.#retry = 0;
      this.#set("live");
      // What happened in between was told to nobody.
      if (broken) this.refresh();
      broken = false;
    });
    source.addEventListener("changed", (event) => {
      const { topics } = JSON.parse(event.data);
      this.#queries.forEach((query) => query.concerns(topics) && query.refetch());
    });
    source.addEventListener("error", () => {
      broken = true;
      if (this.state === "live") this.#set("polling");
      if (source.readyState === EventSource.CLOSED) this.#close();
      // Is it the stream alone, or the master? A call will tell.
      this.#probe();
    });
  }

  #close() {
    this.#source?.close();
    this.#source = null;
  }

  #heard(outcome) {
    if (this.state === "idle") return;
    if (outcome === "unauthorized") {
      this.dispatchEvent(new Event("unauthorized"));
    } else if (outcome === "unreachable") {
      this.#set("lost");
      this.#probe();
    } else if (this.state === "lost") {
      this.#retry = 0;
      this.#set("polling");
      this.#close();
      this.#listen();
      this.refresh();
    }
  }

  #probe() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(
      async () => {
        if (this.state === "idle" || this.state === "live") return;
        try {
          await json("/v1/session");
          this.#listen();
        } catch (error) {
          if (!(error instanceof ApiError)) throw error;
        }
        // Still no events: a little later once more.
        if (this.state !== "live" && this.state !== "idle") this.#probe();
      },
      RETRY_MS[Math.min(this.#retry++, RETRY_MS.length - 1)],
    );
  }

  #poll() {
    if (document.hidden || this.state === "idle" || this.state === "lost") return;
    const every = this.state === "live" ? SLOW_POLL_MS : POLL_MS;
    this.#queries.forEach((query) => query.refetch(query.poll ?? every));
  }
}

export const connection = new Connection();

/** One address whose answer a page shows. `topics`: those of the event stream that concern it. With `merge(before,
 * answer)` the address may be a function of what is there: for lists that only grow. */
export class Query {
  data = undefined;
  error = null;
  /** When `data` came, in Unix milliseconds. */
  at = 0;
  #path;
  #topics;
  #onchange;
  #abort = null;
  #again = false;
  #timer = 0;
  #begun = 0;
  #minimum;
  #merge;

  constructor(path, { topics = [], onchange, poll, merge, atMostEvery = AT_MOST_EVERY_MS }) {
    this.#path = path;
    this.#topics = topics;
    this.#onchange = onchange;
    this.poll = poll;
    this.#minimum = atMostEvery;
    this.#merge = merge ?? ((_, answer) => answer);
    connection.add(this);
    this.refetch();
  }

  get loading() {
    return this.data === undefined && this.error === null;
  }

  /** Another address; what is shown stays until its answer is there. */
  move(path) {
    if (path === this.#path) return;
    this.#path = path;
    this.#abort?.abort();
    this.#abort = null;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#run();
  }

  concerns(topics) {
    return topics.some((topic) => topic === "*" || topic === "all" || this.#topics.includes(topic));
  }

  /** Fetch again, unless that was done within the last `maxAge` milliseconds; several wishes are one. */
  refetch(maxAge = 0) {
    const age = Date.now() - this.#begun;
    if (this.#abort !== null) {
      if (maxAge === 0) this.#again = true;
    } else if (age >= Math.max(maxAge, this.#minimum)) {
      this.#run();
    } else if (maxAge === 0 && this.#timer === 0) {
      this.#timer = setTimeout(() => {
        this.#timer = 0;
        if (this.#abort === null) this.#run();
      }, this.#minimum - age);
    }
  }

  close() {
    connection.remove(this);
    clearTimeout(this.#timer);
    this.#timer = -1;
    this.#again = false;
    this.#abort?.abort();
    this.#onchange = () => {};
  }

  async #run() {
    const abort = (this.#abort = new AbortController());
    this.#begun = Date.now();
    this.#again = false;
    try {
      const path = typeof this.#path === "function" ? this.#path(this.data) : this.#path;
      const data = await json(path, { signal: abort.signal });
      if (this.#abort !== abort) return;
      this.data = this.#merge(this.data, data);
      this.error = null;
      this.at = Date.now();
    } catch (error) {
      if (this.#abort !== abort || error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      // While nothing answers, what was there last is still the best there is, and the banner says so.
      if (error.status !== 0 || this.data === undefined) this.error = error;
      if (error.status === 404) this.data = undefined;
    } finally {
      if (this.#abort === abort) this.#abort = null;
    }
    this.#onchange();
    if (this.#again && this.#timer === 0) this.refetch();
  }
}
