// Figures for people. Memory is in binary units, times are the reader's own with UTC in the title.
import { h } from "./dom.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 1610612736 → "1.5 GiB". */
export function bytes(amount) {
  if (amount === null || amount === undefined) return "–";
  let unit = 0;
  let left = amount;
  while (Math.abs(left) >= 1024 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${trim(left)} ${UNITS[unit]}`;
}

/** Always GiB: for sums that stand beside each other. */
export const gib = (amount) => (amount === null || amount === undefined ? "–" : `${trim(amount / 2 ** 30)} GiB`);

/** 1500 → "1.5 CPU". */
export const cpu = (milli) => (milli === null || milli === undefined ? "–" : `${trim(milli / 1000)} CPU`);

function trim(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return Number(value.toFixed(digits)).toLocaleString("en", { maximumFractionDigits: 2 });
}

export const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

/** "1 worker", "3 workers". */
export const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–");

/** A profile as the API gives it → "1 CPU, 2 GiB, 1 gpu". */
export function size(resource) {
  if (!resource) return "default slot";
  const more = Object.entries(resource.extendedResources ?? {}).map(([name, amount]) => `${amount} ${name}`);
  return [cpu(resource.cpu_milli), bytes(resource.memory_bytes), ...more].join(", ");
}

/** 73500 → "1 min 13 s". */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined || milliseconds < 0) return "–";
  if (milliseconds < 10_000) return `${(milliseconds / 1000).toFixed(1)} s`;
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

const pad = (value) => String(value).padStart(2, "0");

/** Unix milliseconds → the reader's own clock; the day only when it is not today. */
export function clock(milliseconds, now = Date.now()) {
  const date = new Date(milliseconds);
  const time = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  if (date.toDateString() === new Date(now).toDateString()) return time;
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${time}`;
}

/** A <time> with UTC in its title. */
export function when(milliseconds) {
  if (!milliseconds || milliseconds <= 0) return "–";
  const iso = new Date(milliseconds).toISOString();
  return h("time", { datetime: iso, title: iso.replace("T", " ").replace("Z", " UTC") }, clock(milliseconds));
}

/** "RUNNING" → "running", "WAITING_FOR_RESOURCES" → "waiting for resources". */
export const words = (constant) => String(constant ?? "").toLowerCase().replaceAll("_", " ");
