// The slot map: a bar a worker, its slots in it drawn to size, on one canvas. Only the bars that have changed are drawn
// again; what is pointed at is an element above the canvas, so that moving about draws nothing.
import { colourOf, darkScheme } from "./colours.js";
import { bytes, cpu, plural, size } from "./format.js";
import { go } from "./router.js";

const LABEL_PX = 15;
const GAP_PX = 14;

/** What a resource is measured by: "cpu" or "memory". */
const amountOf = { cpu: (resource) => resource.cpu_milli, memory: (resource) => resource.memory_bytes };
const named = { cpu, memory: bytes };

/** A widget for dom.js. props: {data (GET /v1/slots), by ("cpu" | "memory"), only (a job's id or null)}. */
export const slotMap = {
  create: (props) => new SlotMap(props),
};

class SlotMap {
  #props;
  #drawn = [];
  #bars = [];
  #largest = 1;
  #at = null;
  #tapped = "";
  #frame = 0;
  #width = 0;
  #canvas = document.createElement("canvas");
  #outline = document.createElement("div");
  #tip = document.createElement("div");
  #voice = document.createElement("div");
  #observer;
  #theme = () => this.#redraw();

  constructor(props) {
    this.#props = props;
    this.element = document.createElement("div");
    this.element.className = "slotmap";
    this.#outline.className = "slotmap-outline";
    this.#tip.className = "slotmap-tip";
    this.#tip.setAttribute("aria-hidden", "true");
    this.#voice.className = "sr";
    this.#voice.setAttribute("role", "status");
    this.#outline.hidden = this.#tip.hidden = true;
    this.#canvas.tabIndex = 0;
    this.#canvas.setAttribute("role", "application");
    this.#canvas.setAttribute("aria-roledescription", "slot map");
    this.element.append(this.#canvas, this.#outline, this.#tip, this.#voice);
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.#canvas.addEventListener("pointerleave", () => this.#select(null));
    this.#canvas.addEventListener("click", (event) => {
      const before = this.#tapped;
      this.#point(event);
      this.#tapped = String(this.#at);
      // A finger cannot hover: the first tap tells, another one on the same place opens.
      if (event.pointerType !== "touch" || this.#tapped === before) this.#open();
    });
    this.#canvas.addEventListener("keydown", (event) => this.#key(event));
    this.#canvas.addEventListener("focus", () => {
      if (this.#at === null && this.#bars.length && this.#canvas.matches(":focus-visible")) this.#select([0, 0], true);
    });
    this.#canvas.addEventListener("blur", () => this.#select(null));
    this.#observer = new ResizeObserver(() => this.#redraw());
    this.#observer.observe(this.element);
    darkScheme.addEventListener("change", this.#theme);
    this.#schedule();
  }

  update(props) {
    const before = this.#props;
    this.#props = props;
    if (before.by !== props.by || before.only !== props.only) this.#redraw();
    else if (before.data !== props.data) this.#schedule();
  }

  destroy() {
    this.#observer.disconnect();
    darkScheme.removeEventListener("change", this.#theme);
    cancelAnimationFrame(this.#frame);
  }

  #redraw() {
    this.#drawn = [];
    this.#schedule();
  }

  #schedule() {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  // ---------------------------------------------------------------------------------------------- drawing

  #draw() {
    this.#frame = 0;
    const { data, by } = this.#props;
    const width = this.element.clientWidth;
    if (!width) return;
    const amount = amountOf[by];
    const workers = [...data.workers, ...data.pending.map((pending) => ({ ...pending, slots: [], coming: true }))];
    const largest = Math.max(1, ...workers.map((worker) => amount(worker.total)));
    const columns = columnsFor(workers.length, width);
    const barHeight = workers.length <= 12 ? 30 : workers.length <= 60 ? 20 : 14;
    const rowHeight = LABEL_PX + barHeight + 7;
    const columnWidth = (width - GAP_PX * (columns - 1)) / columns;
    const rows = Math.ceil(workers.length / columns);
    const ratio = Math.min(devicePixelRatio || 1, 2);
    if (
      width !== this.#width ||
      largest !== this.#largest ||
      this.#drawn.length !== workers.length ||
      this.#canvas.height !== Math.round(rows * rowHeight * ratio)
    ) {
      this.#canvas.width = Math.round(width * ratio);
      this.#canvas.height = Math.round(rows * rowHeight * ratio);
      this.#canvas.style.height = `${rows * rowHeight}px`;
      this.#drawn = [];
      this.#width = width;
      this.#largest = largest;
    }
    const context = this.#canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const paint = paints(this.element, context);
    let redrawn = 0;
    this.#bars = workers.map((worker, index) => {
      const before = this.#drawn[index];
      if (before !== undefined && unchanged(before.worker, worker)) {
        before.worker = worker;
        return before;
      }
      redrawn += 1;
      const bar = {
        worker,
        x: (index % columns) * (columnWidth + GAP_PX),
        y: Math.floor(index / columns) * rowHeight,
        width: columnWidth,
        row: rowHeight,
        height: barHeight,
        scale: columnWidth / largest,
        column: index % columns,
        segments: [],
      };
      this.#bar(context, paint, bar);
      return bar;
    });
    this.#drawn = this.#bars;
    this.columns = columns;
    this.#canvas.dataset.redrawn = redrawn;
    this.#canvas.dataset.workers = data.workers.length;
    const slots = data.workers.reduce((sum, worker) => sum + worker.slots.length, 0);
    this.#canvas.dataset.slots = slots;
    this.#canvas.setAttribute(
      "aria-label",
      `${plural(data.workers.length, "worker")} with ${plural(slots, "slot")}, by ${by === "cpu" ? "CPU" : "memory"}. ` +
        "Arrow keys move from slot to slot and from worker to worker, Enter opens what is chosen.",
    );
    if (this.#at !== null) this.#select(this.#at);
  }

  #bar(context, paint, bar) {
    const { data, by, only } = this.#props;
    const amount = amountOf[by];
    const { worker, x, y, height, scale } = bar;
    const top = y + LABEL_PX;
    context.clearRect(x - 1, y, bar.width + 2, bar.row);
    context.font = paint.font;
    context.textBaseline = "alphabetic";
    context.fillStyle = worker.blocked || worker.leaving ? paint.warn : paint.label;
    const mark = worker.coming ? " starting" : worker.leaving ? " leaving" : worker.blocked ? " blocked" : "";
    context.fillText(fitted(context, worker.id, bar.width - (mark ? 52 : 0)) + mark, x, y + LABEL_PX - 4);
    const whole = Math.max(2, amount(worker.total) * scale);
    context.fillStyle = paint.ground;
    context.fillRect(x, top, whole, height);
    let left = x;
    for (const slot of worker.slots) {
      const [, jobAt, profileAt, pending] = slot;
      const job = data.jobs[jobAt];
      const wide = Math.min(amount(data.profiles[profileAt]) * scale, x + whole - left);
      const seam = wide > 3 ? 1 : 0;
      const colour = colourOf(job.id, paint.dark);
      context.globalAlpha = only && only !== job.id ? 0.18 : pending ? 0.4 : 1;
      context.fillStyle = colour;
      context.fillRect(left, top, Math.max(wide - seam, 0.5), height);
      context.globalAlpha = 1;
      if (pending && wide > 4) {
        context.strokeStyle = colour;
        context.lineWidth = 1.5;
        context.setLineDash([3, 2]);
        context.strokeRect(left + 0.75, top + 0.75, wide - seam - 1.5, height - 1.5);
        context.setLineDash([]);
      }
      bar.segments.push({ x: left, width: wide, slot, job });
      left += wide;
    }
    const rest = x + whole - left;
    if (rest > 0.5) {
      context.fillStyle = paint.hatch;
      context.fillRect(left, top, rest, height);
      bar.segments.push({ x: left, width: rest, slot: null });
    }
    context.strokeStyle = worker.blocked || worker.leaving ? paint.warn : paint.line;
    context.lineWidth = 1;
    if (worker.coming) context.setLineDash([4, 3]);
    context.strokeRect(x + 0.5, top + 0.5, whole - 1, height - 1);
    context.setLineDash([]);
    if (!bar.segments.length) bar.segments.push({ x, width: whole, slot: null });
  }

  // ---------------------------------------------------------------------------------------------- pointing

  #point(event) {
    const box = this.#canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const first = this.#bars[0];
    if (first === undefined) return;
    const column = Math.min(this.columns - 1, Math.floor(x / (first.width + GAP_PX)));
    const number = Math.floor(y / first.row) * this.columns + column;
    const bar = this.#bars[number];
    const part = bar?.segments.findIndex((segment) => x >= segment.x && x < segment.x + segment.width) ?? -1;
    this.#select(part < 0 ? null : [number, part]);
  }

  #select(at, aloud = false) {
    const bar = at && this.#bars[at[0]];
    const part = bar?.segments[Math.min(at[1], bar.segments.length - 1)];
    this.#at = part ? [at[0], Math.min(at[1], bar.segments.length - 1)] : null;
    this.#outline.hidden = this.#tip.hidden = !part;
    if (!part) return;
    const top = bar.y + LABEL_PX;
    Object.assign(this.#outline.style, {
      transform: `translate(${part.x}px, ${top}px)`,
      width: `${Math.max(3, part.width - 1)}px`,
      height: `${bar.height}px`,
    });
    const lines = this.#lines(bar.worker, part);
    this.#tip.replaceChildren(
      ...lines.map((line, index) => {
        const element = document.createElement(index ? "div" : "strong");
        element.textContent = line;
        return element;
      }),
    );
    const right = Math.min(part.x, Math.max(0, this.#width - this.#tip.offsetWidth - 4));
    const above = bar.y - this.#tip.offsetHeight - 2;
    this.#tip.style.transform = `translate(${right}px, ${above < 0 ? top + bar.height + 6 : above}px)`;
    if (aloud) this.#voice.textContent = lines.join(", ");
  }

  #lines(worker, part) {
    const { data, by } = this.#props;
    const amount = amountOf[by];
    if (worker.coming) return [`${worker.id} is starting`, size(worker.total)];
    const state = worker.leaving ? " (leaving)" : worker.blocked ? " (blocked)" : "";
    if (part.slot === null) {
      return [`Free: ${cpu(worker.free.cpu_milli)}, ${bytes(worker.free.memory_bytes)}`, `on ${worker.id}${state}`];
    }
    const profile = data.profiles[part.slot[2]];
    const share = Math.round((100 * amount(profile)) / Math.max(1, amount(worker.total)));
    return [
      part.job.name,
      `${part.job.id}${part.slot[3] ? " – pending: asked for, not confirmed yet" : ""}`,
      `${size(profile)} (${share} % of ${named[by](amount(worker.total))})`,
      `${part.slot[0]} on ${worker.id}${state}`,
    ];
  }

  #open() {
    if (this.#at === null) return;
    const bar = this.#bars[this.#at[0]];
    const part = bar.segments[this.#at[1]];
    if (part.slot !== null) go(["jobs", part.job.id]);
    else if (!bar.worker.coming) go(["workers", bar.worker.id]);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.#bars.length) return;
    const [number, part] = this.#at ?? [0, 0];
    const last = this.#bars.length - 1;
    const moves = {
      ArrowRight: () =>
        part + 1 < this.#bars[number].segments.length ? [number, part + 1] : [Math.min(number + 1, last), 0],
      ArrowLeft: () => (part > 0 ? [number, part - 1] : [Math.max(number - 1, 0), number > 0 ? 1e6 : 0]),
      ArrowDown: () => [Math.min(number + this.columns, last), part],
      ArrowUp: () => [Math.max(number - this.columns, 0), part],
      Home: () => [0, 0],
      End: () => [last, 1e6],
    };
    if (event.key === "Enter") this.#open();
    else if (event.key === "Escape") this.#select(null);
    else if (moves[event.key]) {
      event.preventDefault();
      this.#select(moves[event.key](), true);
      this.#outline.scrollIntoView({ block: "nearest" });
    }
  }
}

const columnsFor = (workers, width) => {
  const least = workers <= 12 ? 420 : workers <= 60 ? 260 : 180;
  return Math.max(1, Math.min(workers, Math.floor((width + GAP_PX) / (Math.min(least, width) + GAP_PX))));
};

/** Whether a bar would look the same: a slot's job and size never change, so its name and whether it is confirmed say
 * it all. */
function unchanged(before, after) {
  if (
    before.id !== after.id ||
    before.blocked !== after.blocked ||
    before.leaving !== after.leaving ||
    before.coming !== after.coming ||
    before.slots.length !== after.slots.length ||
    before.total.cpu_milli !== after.total.cpu_milli ||
    before.total.memory_bytes !== after.total.memory_bytes
  ) {
    return false;
  }
  for (let index = 0; index < after.slots.length; index += 1) {
    if (before.slots[index][0] !== after.slots[index][0] || before.slots[index][3] !== after.slots[index][3]) {
      return false;
    }
  }
  return true;
}

function paints(element, context) {
  const style = getComputedStyle(element);
  const value = (name) => style.getPropertyValue(name).trim();
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = value("--hatch");
  pen.lineWidth = 1;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
  }
  pen.stroke();
  return {
    ground: value("--surface"),
    line: value("--line-strong"),
    label: value("--muted"),
    warn: value("--warn"),
    hatch: context.createPattern(tile, "repeat"),
    font: `11px ${value("--mono")}`,
    dark: darkScheme.matches,
  };
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}
