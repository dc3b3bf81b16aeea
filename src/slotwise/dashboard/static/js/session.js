// Who is logged in. The session itself is in a cookie that no script can read.
import { ApiError, json, request } from "./api.js";

const RANK = { viewer: 0, submitter: 1, admin: 2 };

export const session = { name: "", role: "", known: false };

/** Whether calls that need `role` will be let through. */
export const may = (role) => (RANK[session.role] ?? -1) >= RANK[role];

/** Ask the master; true when somebody is logged in. Raises ApiError when nobody answers. */
export async function resume() {
  try {
    adopt(await json("/v1/session", { quiet: true }));
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return false;
    throw error;
  }
}

/** Log in with {token} or {code}. Raises ApiError with the reason. */
export async function login(credentials) {
  adopt(await json("/v1/session", { method: "POST", body: credentials, quiet: true }));
}

export async function logout() {
  await request("/v1/session", { method: "DELETE", quiet: true });
  session.known = false;
}

function adopt({ name, role }) {
  session.name = name;
  session.role = role;
  session.known = true;
}
