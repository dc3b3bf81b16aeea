// Elements from plain values, and a patch that changes only what is different: focus, selection and scrolling stay.
// Data only ever becomes text nodes and attribute values, never markup.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "open", "selected", "hidden", "indeterminate"]);

/** A description of an element. `tag`: a name, or a widget ({create(props) → {element, update(props), destroy()}}). */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, key: props?.key, children: flatten(children, []) };
}

function flatten(children, into) {
  for (const child of children) {
    if (Array.isArray(child)) flatten(child, into);
    else if (child !== null && child !== undefined && child !== false && child !== true) {
      into.push(typeof child === "object" ? child : { text: String(child) });
    }
  }
  return into;
}

/** Make the content of `root` what `nodes` describe. */
export function render(root, ...nodes) {
  const next = flatten(nodes, []);
  patchChildren(root, root.vnodes ?? adopt(root), next, false);
  root.vnodes = next;
}

function adopt(root) {
  root.replaceChildren();
  return [];
}

function create(node, inSvg) {
  if (node.text !== undefined) return (node.element = document.createTextNode(node.text));
  if (typeof node.tag === "object") {
    node.widget = node.tag.create(node.props);
    return (node.element = node.widget.element);
  }
  const svg = inSvg || node.tag === "svg";
  const element = svg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  node.element = element;
  patchChildren(element, [], node.children, svg);
  for (const [name, value] of Object.entries(node.props)) setProp(element, name, value, undefined);
  node.props.onmount?.(element);
  return element;
}

function update(old, next, inSvg) {
  const element = (next.element = old.element);
  if (next.text !== undefined) {
    if (old.text !== next.text) element.data = next.text;
    return;
  }
  if (old.widget) {
    next.widget = old.widget;
    next.widget.update(next.props);
    return;
  }
  patchChildren(element, old.children, next.children, inSvg || next.tag === "svg");
  for (const name of Object.keys(old.props)) {
    if (!(name in next.props)) setProp(element, name, undefined, old.props[name]);
  }
  for (const [name, value] of Object.entries(next.props)) setProp(element, name, value, old.props[name]);
}

function destroy(node) {
  node.widget?.destroy();
  node.children?.forEach(destroy);
}

const same = (a, b) =>
  a.key === b.key && (a.text !== undefined ? b.text !== undefined : b.text === undefined && a.tag === b.tag);

function patchChildren(parent, old, next, svg) {
  const keyed = new Map();
  const plain = [];
  for (const node of old) {
    if (node.key === undefined) plain.push(node);
    else keyed.set(node.key, node);
  }
  let at = 0;
  const kept = new Set();
  const matches = next.map((node) => {
    let match;
    if (node.key !== undefined) match = keyed.get(node.key);
    else {
      while (at < plain.length && !same(plain[at], node)) at += 1;
      match = plain[at];
      at += 1;
    }
    if (match === undefined || kept.has(match) || !same(match, node)) return undefined;
    kept.add(match);
    return match;
  });
  // What goes, goes first: what stays is then in its place already and is not moved, which would cost it the focus.
  for (const node of old) {
    if (!kept.has(node)) {
      destroy(node);
      node.element.remove();
    }
  }
  let cursor = parent.firstChild;
  next.forEach((node, index) => {
    const match = matches[index];
    if (match) update(match, node, svg);
    else create(node, svg);
    if (node.element === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(node.element, cursor);
  });
}

function setProp(element, name, value, before) {
  if (name === "key" || name === "onmount") return;
  if (name.startsWith("on")) {
    const handlers = (element.handlers ??= {});
    const type = name.slice(2);
    if (!(type in handlers)) element.addEventListener(type, (event) => handlers[type]?.(event));
    handlers[type] = value;
  } else if (name === "style") {
    for (const key of Object.keys(before ?? {})) if (!(key in (value ?? {}))) element.style.removeProperty(key);
    for (const [key, text] of Object.entries(value ?? {})) {
      if (before?.[key] !== text) element.style.setProperty(key, text);
    }
  } else if (PROPERTIES.has(name)) {
    // A person may have changed it: what is said is what counts, but only when it is said anew.
    if (value !== before && element[name] !== value) element[name] = value ?? "";
  } else if (value !== before) {
    if (value === undefined || value === null || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}
