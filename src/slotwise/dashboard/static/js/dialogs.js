// Questions and help in the browser's own <dialog>, which keeps the focus inside and gives it back.
import { h, render } from "./dom.js";

function open(content, { label }) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", label);
  document.body.append(dialog);
  render(dialog, ...content(dialog));
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.showModal();
  return dialog;
}

/** Ask before something that cannot be undone; resolves to true or false. */
export function confirm({ title, text, yes, no = "Leave it" }) {
  return new Promise((resolve) => {
    const dialog = open(
      (self) => [
        h("h2", {}, title),
        h("p", {}, text),
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "button", class: "button", autofocus: true, onclick: () => self.close("no") }, no),
          h("button", { type: "button", class: "button danger", onclick: () => self.close("yes") }, yes),
        ),
      ],
      { label: title },
    );
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"));
  });
}

/** The keys there are. */
export function help(shortcuts) {
  if (document.querySelector("dialog[open]")) return;
  open(
    (self) => [
      h("h2", {}, "Keys"),
      h(
        "dl",
        { class: "keys" },
        shortcuts.map(({ keys, text }) => [
          h("dt", {}, keys.split(" ").map((key) => [h("kbd", {}, key), " "])),
          h("dd", {}, text),
        ]),
      ),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", class: "button", autofocus: true, onclick: () => self.close() }, "Close"),
      ),
    ],
    { label: "Keys" },
  );
}

let toastTimer = 0;

/** One line about what was just done, read out by screen readers. */
export function toast(text, kind = "ok") {
  let box = document.getElementById("toast");
  if (!box) {
    box = document.createElement("div");
    box.id = "toast";
    document.body.append(box);
  }
  box.setAttribute("role", kind === "bad" ? "alert" : "status");
  box.className = `toast ${kind}`;
  box.textContent = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => box.remove(), kind === "bad" ? 12_000 : 5_000);
}
