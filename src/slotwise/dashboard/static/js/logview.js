// A log that follows: what comes is appended, never drawn again; the oldest goes when there is too much for a page.
import { ApiError, request } from "./api.js";
import { bytes } from "./format.js";

const CHUNK_CHARS = 32_768;
const LONG_LINE_CHARS = 262_144;
const KEPT_CHARS = 2_000_000;
const MOST_MATCHES = 2_000;
const RETRY_MS = 1_500;
const ASK_AGAIN_MS = 3_000;
// Colours of terminals, which are of no use here.
const ESCAPES = /\u001b\[[0-9;?]*[A-Za-z]/g;

/** A widget for dom.js. props: {address (of the log), label, tail (bytes: begin so far before the end), ends (whether
 * the master says when the log is over; else it is asked again now and then)}. */
export const logView = {
  create: (props) => new LogView(props),
};

class LogView {
  #props;
  #offset = 0;
  #start = 0;
  #abort = null;
  #decoder = new TextDecoder();
  #waiting = "";
  #chunks = [];
  #chars = 0;
  #dropped = false;
  #frame = 0;
  #timer = 0;
  #paused = false;
  #closed = false;
  #matches = [];
  #match = -1;
  #searching = 0;

  constructor(props) {
    this.#props = props;
    this.#build();
    document.addEventListener("visibilitychange", this.#onVisible);
    this.#read();
  }

  update(props) {
    const before = this.#props;
    this.#props = props;
    if (before.address === props.address) return;
    this.#label();
    this.#clear();
    this.#read();
  }

  destroy() {
    this.#closed = true;
    this.#stop();
    document.removeEventListener("visibilitychange", this.#onVisible);
    cancelAnimationFrame(this.#frame);
    CSS.highlights?.delete("found");
    CSS.highlights?.delete("found-here");
  }

  // ---------------------------------------------------------------------------------------------- the elements

  #build() {
    const make = (tag, properties, ...children) => {
      const element = Object.assign(document.createElement(tag), properties);
      element.append(...children);
      return element;
    };
    const button = (text, onclick) => make("button", { type: "button", className: "button", textContent: text, onclick });
    this.search = make("input", { type: "search", className: "field", placeholder: "Search in what is shown" });
    this.search.dataset.search = "";
    this.search.setAttribute("aria-label", "Search in the log");
    this.search.addEventListener("input", () => this.#soonFind(0));
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.#step(event.shiftKey ? -1 : 1);
    });
    this.found = make("span", { className: "quiet small found" });
    this.found.setAttribute("role", "status");
    this.pause = button("Pause", () => this.#setPaused(!this.#paused));
    this.bottom = button("To the end", () => this.#toEnd());
    this.wrap = button("Wrap lines", () => {
      const wrapped = this.text.classList.toggle("wrapped");
      this.wrap.setAttribute("aria-pressed", String(wrapped));
    });
    this.wrap.setAttribute("aria-pressed", "true");
    this.download = make("a", { className: "button", textContent: "Download" });
    this.text = make("div", { className: "log wrapped", tabIndex: 0 });
    this.text.setAttribute("role", "log");
    this.text.setAttribute("aria-live", "off");
    this.status = make("p", { className: "quiet small log-status" });
    this.status.setAttribute("role", "status");
    const tools = make("div", { className: "log-tools" }, this.search, this.found, this.pause, this.bottom, this.wrap, this.download);
    this.element = make("div", { className: "logview" }, tools, this.text, this.status);
    this.#label();
  }

  #label() {
    this.text.setAttribute("aria-label", this.#props.label);
    this.download.href = `${this.#props.address}?download=1`;
    this.download.setAttribute("download", "");
  }

  #say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  // ---------------------------------------------------------------------------------------------- reading

  #clear() {
    this.#stop();
    this.#offset = this.#start = this.#chars = 0;
    this.#decoder = new TextDecoder();
    this.#waiting = "";
    this.#chunks = [];
    this.#dropped = false;
    this.text.replaceChildren();
    this.#soonFind(0);
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  #onVisible = () => {
    if (document.hidden) this.#stop();
    else if (this.#abort === null && !this.#paused) this.#read();
  };

  #setPaused(paused) {
    this.#paused = paused;
    this.pause.textContent = paused ? "Go on" : "Pause";
    this.pause.setAttribute("aria-pressed", String(paused));
    if (paused) {
      this.#stop();
      this.#say("Paused. What comes meanwhile is read when you go on.");
    } else {
      this.#read();
    }
  }

  async #read() {
    this.#stop();
    if (this.#closed || document.hidden) return;
    const abort = (this.#abort = new AbortController());
    const { address, tail } = this.#props;
    if (this.#offset === 0) this.#say("Reading …");
    try {
      const from = this.#offset === 0 && tail ? `tail=${tail}` : `offset=${this.#offset}`;
      const answer = await request(`${address}?${from}&follow=1`, { signal: abort.signal });
      if (this.#offset === 0) this.#start = this.#offset = Number(answer.headers.get("x-log-offset") ?? 0);
      this.#say("Following. New lines appear by themselves.");
      const reader = answer.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (this.#abort !== abort) return;
        if (done) break;
        this.#offset += value.length;
        this.#take(this.#decoder.decode(value, { stream: true }));
      }
      this.#abort = null;
      if (!this.#props.ends) {
        this.#timer = setTimeout(() => this.#read(), ASK_AGAIN_MS);
        return;
      }
      this.#say(this.#chars || this.#waiting ? `The log is complete, ${bytes(this.#offset)}.` : "This log is empty.");
    } catch (error) {
      if (this.#abort !== abort || error.name === "AbortError") return;
      this.#abort = null;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
        this.#say(`Cannot be read: ${error.message}.`);
        return;
      }
      this.#say("The connection was lost; trying again.");
      this.#timer = setTimeout(() => this.#read(), RETRY_MS);
    }
  }

  #take(text) {
    this.#waiting += text;
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#append());
  }

  #append() {
    this.#frame = 0;
    let text = this.#waiting.replace(ESCAPES, "");
    this.#waiting = "";
    if (text.length > KEPT_CHARS) {
      text = text.slice(text.indexOf("\n", text.length - KEPT_CHARS) + 1);
      this.#dropped = true;
    }
    const atEnd = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 24;
    // In pieces that end with a line, each a block of its own: the browser lays out only the last one anew.
    while (text) {
      const last = this.#chunks.at(-1);
      const full =
        last === undefined || last.length > LONG_LINE_CHARS || (last.length > CHUNK_CHARS && last.data.endsWith("\n"));
      if (full) {
        const block = document.createElement("div");
        this.#chunks.push(block.appendChild(document.createTextNode("")));
        this.text.append(block);
        continue;
      }
      const cut = text.indexOf("\n", Math.max(0, CHUNK_CHARS - last.length));
      const piece = cut < 0 ? text : text.slice(0, cut + 1);
      last.appendData(piece);
      this.#chars += piece.length;
      text = text.slice(piece.length);
    }
    while (this.#chars > KEPT_CHARS && this.#chunks.length > 1) {
      const first = this.#chunks.shift();
      this.#chars -= first.length;
      first.parentNode.remove();
      this.#dropped = true;
    }
    this.text.classList.toggle("cut", this.#dropped || this.#start > 0);
    if (atEnd) this.#toEnd();
    if (this.search.value) this.#soonFind(300);
  }

  #toEnd() {
    this.text.scrollTop = this.text.scrollHeight;
  }

  // ---------------------------------------------------------------------------------------------- searching

  #soonFind(delay) {
    clearTimeout(this.#searching);
    this.#searching = setTimeout(() => this.#find(), delay || 120);
  }

  #find() {
    const wanted = this.search.value;
    this.#matches = [];
    this.#match = -1;
    if (wanted) {
      const pattern = new RegExp(wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
      for (const chunk of this.#chunks) {
        for (const { index } of chunk.data.matchAll(pattern)) {
          const range = document.createRange();
          range.setStart(chunk, index);
          range.setEnd(chunk, index + wanted.length);
          this.#matches.push(range);
        }
        if (this.#matches.length >= MOST_MATCHES) break;
      }
    }
    const number = this.#matches.length;
    const many = number >= MOST_MATCHES ? `${MOST_MATCHES} or more` : number;
    this.found.textContent = wanted ? `${many} found` : "";
    if (globalThis.Highlight) {
      CSS.highlights.set("found", new Highlight(...this.#matches));
      CSS.highlights.delete("found-here");
    }
  }

  #step(by) {
    if (!this.#matches.length) return;
    this.#match = (this.#match + by + this.#matches.length) % this.#matches.length;
    const range = this.#matches[this.#match];
    this.found.textContent = `${this.#match + 1} of ${this.#matches.length}`;
    if (globalThis.Highlight) CSS.highlights.set("found-here", new Highlight(range));
    const box = range.getBoundingClientRect();
    const frame = this.text.getBoundingClientRect();
    this.text.scrollTop += box.top - frame.top - frame.height / 2;
  }
}
