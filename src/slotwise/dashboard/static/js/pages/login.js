// Where a token is given for a session.
import { ApiError } from "../api.js";
import { h } from "../dom.js";

const form = { busy: false, error: "" };

/** `enter(credentials)` logs in, or raises ApiError. */
export function loginView({ message, enter }) {
  const submit = async (event) => {
    event.preventDefault();
    const field = event.target.elements.token;
    const button = event.target.querySelector("button");
    const problem = document.getElementById("login-problem");
    if (form.busy) return;
    if (!field.value.trim()) {
      problem.textContent = "Paste a token first.";
      field.focus();
      return;
    }
    form.busy = button.disabled = true;
    try {
      await enter({ token: field.value.trim() });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      problem.textContent = error.status === 401 ? "The master does not know this token." : `${error.message}.`;
      field.select();
    } finally {
      form.busy = button.disabled = false;
    }
  };
  return [
    h(
      "form",
      { class: "panel login", onsubmit: submit, autocomplete: "off" },
      h("h1", {}, "Log in"),
      message ? h("p", { class: "note", role: "status" }, message) : null,
      h("label", { for: "token" }, "Token"),
      h("input", {
        id: "token",
        name: "token",
        type: "password",
        class: "field mono",
        autocomplete: "current-password",
        spellcheck: "false",
        autofocus: true,
        "aria-describedby": "login-problem login-help",
        onmount: (element) => requestAnimationFrame(() => element.focus()),
      }),
      h("p", { id: "login-problem", class: "problem", role: "alert" }),
      h("button", { type: "submit", class: "button primary wide" }, "Log in"),
      h(
        "p",
        { id: "login-help", class: "quiet small" },
        "The master's token is in its state directory, in the file ",
        h("code", {}, "token"),
        "; ",
        h("code", {}, "slotwise dashboard --open"),
        " logs in by itself.",
      ),
    ),
  ];
}
