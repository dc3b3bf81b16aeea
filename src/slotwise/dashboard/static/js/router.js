// Addresses behind the #: "#/jobs/job-1/logs?q=x" → {path: ["jobs", "job-1", "logs"], query}.

export function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: new URLSearchParams(query ?? ""),
  };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a page. Parameters that are empty are left out. */
export function href(path, query = {}) {
  const left = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const tail = left.length ? `?${new URLSearchParams(left)}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${tail}`;
}

export function go(path, query) {
  location.hash = href(path, query);
}

/** Change the address without a step in the history: what a person is typing. */
export function replace(path, query) {
  history.replaceState(null, "", href(path, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}
