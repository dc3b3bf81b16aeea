// Calls to the master. Whoever calls gets the answer or an error that says what a person can do with it.

export class ApiError extends Error {
  /** `status` 0: no answer at all. */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const listeners = new Set();
let skewMs = 0;

/** The master's clock, in Unix milliseconds: its times are compared with this, not with a clock that may be wrong. */
export const now = () => Date.now() + skewMs;

/** `listener("unauthorized" | "unreachable" | "answered")` hears how calls go. */
export function onOutcome(listener) {
  listeners.add(listener);
}

const tell = (outcome) => listeners.forEach((listener) => listener(outcome));

/** Fetch `path`; raises ApiError. Calls that change something carry the header that a foreign page cannot send. */
export async function request(path, { method = "GET", body, signal, quiet = false } = {}) {
  const headers = { "X-Slotwise": "dashboard" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!quiet) tell("unreachable");
    throw new ApiError("the master does not answer");
  }
  const date = Date.parse(answer.headers.get("date") ?? "");
  // The header has whole seconds: less than a few of difference says nothing.
  if (!Number.isNaN(date)) skewMs = Math.abs(date - Date.now()) > 3_000 ? date - Date.now() : 0;
  if (!quiet) tell(answer.status === 401 ? "unauthorized" : "answered");
  if (!answer.ok) throw new ApiError(await problem(answer), answer.status);
  return answer;
}

/** The decoded JSON of an answer. */
export async function json(path, options) {
  const answer = await request(path, options);
  try {
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the master's answer broke off");
  }
}

async function problem(answer) {
  try {
    return (await answer.json()).detail;
  } catch {
    return `the master answered ${answer.status} ${answer.statusText}`;
  }
}
