"use strict";
// Draws the recording in #data. Recorded text is only ever set as textContent or as a number; see page.py.

const data = JSON.parse(document.getElementById("data").textContent);
const COLUMNS = 48;      // steps in the timeline table at once
const MAX_ROWS = 80;     // sequences in it
const MAX_SQUARES = 4096;
const FIELDS = ["tokens", "computed", "in flight", "promised", "stale"];
const at = (id) => document.getElementById(id);
const nameOf = (id) => data.names[id] ?? "#" + id;
const steps = data.steps;
let current = 0;

function make(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (className) node.className = className;
  return node;
}

const amount = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function list(node, items, empty) {
  node.replaceChildren(...(items.length ? items : [make("li", empty, "hint")]));
}

const names = (ids, most = 12, all = ids.length) =>
  all === 0 ? "none"
    : ids.slice(0, most).map(nameOf).join(", ") + (all > most ? ` and ${all - most} more` : "");

// Block tables are kept as differences per step; this rebuilds them up to the step shown.
function tablesAt(index) {
  const held = new Map();
  for (const [id, tables] of Object.entries(data.held)) held.set(Number(id), tables.map((t) => t.slice()));
  for (let i = 0; i <= index; i++) {
    for (const s of steps[i].slices) {
      if (s.fresh || !held.has(s.id)) held.set(s.id, s.blocks.map(() => []));
      const tables = held.get(s.id);
      s.blocks.forEach((blocks, g) => {
        tables[g].splice(s.start[g], Infinity, ...blocks);
        tables[g].fill(0, 0, s.passed[g]);
      });
    }
    const running = new Set(steps[i].running);
    for (const id of held.keys()) if (!running.has(id)) held.delete(id);
  }
  return held;
}
