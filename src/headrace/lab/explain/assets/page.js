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

function list(node, items, empty) {
  node.replaceChildren(...(items.length ? items : [make("li", empty, "hint")]));
}

const names = (ids, most = 12, all = ids.length) =>
  all === 0 ? "none" : ids.slice(0, most).map(nameOf).join(", ") + (all > most ? ` and ${all - most} more` : "");

// -- block tables: kept as differences per step, rebuilt up to the step shown ------------------------------------

function tablesAt(index) {
  const held = new Map(Object.entries(data.held).map(([id, tables]) => [Number(id), tables.map((t) => t.slice())]));
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

// -- timeline ----------------------------------------------------------------------------------------------------

function cellOf(step, id) {
  const slice = step.slices.find((s) => s.id === id);
  if (slice) return { kind: slice.kind, mark: slice.q, ended: Boolean(slice.finish), words: `${slice.kind}, ${slice.why}` };
  if (step.notes.some((n) => n.seq_id === id && n.note === "preempted"))
    return { kind: "preempted", mark: "×", words: "preempted" };
  if (step.waiting.includes(id)) return { kind: "waiting", mark: "–", words: "waiting" };
  if (step.running.includes(id)) return { kind: "idle", mark: "○", words: "running, nothing to do" };
  return null;
}

// Whether a sequence is ended from outside between this plan and the next.
function endsAfter(index, id) {
  const happenings = index + 1 < steps.length ? steps[index + 1].happenings : data.after;
  return happenings.some((h) => h.kind === "finish" && h.seq_id === id);
}

function drawTimeline() {
  const first = Math.max(0, Math.min(current - COLUMNS / 2, steps.length - COLUMNS));
  const shown = steps.slice(first, first + COLUMNS);
  const ids = new Set();
  for (const step of shown) for (const id of [...step.running, ...step.waiting, ...step.slices.map((s) => s.id)]) ids.add(id);
  const rows = [...ids].sort((a, b) => a - b);
  const head = make("tr");
  head.append(make("td"));
  shown.forEach((step, i) => {
    const th = make("th", step.step < 0 ? "∅" : step.step);
    th.scope = "col";
    th.dataset.index = first + i;
    th.classList.toggle("now", first + i === current);
    th.classList.toggle("failed", step.outcome === "fail");
    if (first + i === current) th.setAttribute("aria-current", "step");
    head.append(th);
  });
  const body = make("tbody");
  for (const id of rows.slice(0, MAX_ROWS)) body.append(timelineRow(id, shown, first));
  const thead = make("thead");
  thead.append(head);
  const more = rows.length > MAX_ROWS ? `; ${rows.length - MAX_ROWS} more sequences are not shown` : "";
  at("timeline-words").textContent = `${shown.length} of ${steps.length} steps${more}`;
  at("timeline").replaceChildren(thead, body);
  keepInView(first);
}

function timelineRow(id, shown, first) {
  const row = make("tr");
  const label = make("th", nameOf(id));
  label.scope = "row";
  row.append(label);
  shown.forEach((step, i) => {
    const cell = cellOf(step, id);
    if (cell && endsAfter(first + i, id)) cell.ended = true;
    const td = make("td", cell ? cell.mark : "");
    td.dataset.index = first + i;
    if (cell) {
      td.classList.add("k-" + cell.kind);
      td.classList.toggle("ended", Boolean(cell.ended));
      td.title = `${nameOf(id)}, step ${step.step}: ${cell.words}`;
    }
    td.classList.toggle("now", first + i === current);
    row.append(td);
  });
  return row;
}

function keepInView(first) {
  const frame = at("timeline-frame");
  const th = at("timeline").querySelector(`thead th[data-index="${current}"]`);
  if (!th || first < 0) return;
  const left = th.offsetLeft - frame.clientWidth / 2;
  frame.scrollLeft = Math.max(0, left);
}

// Tokens per step as bars; many steps share a pixel column, which then shows the largest of them.
function drawOverview() {
  const canvas = at("overview");
  const width = (canvas.width = canvas.clientWidth * devicePixelRatio);
  const height = (canvas.height = 56 * devicePixelRatio);
  const style = getComputedStyle(document.documentElement);
  const pen = canvas.getContext("2d");
  const most = Math.max(1, ...steps.map((s) => s.budget[0]));
  const wide = Math.max(1, Math.min(width / steps.length, 24 * devicePixelRatio));
  steps.forEach((step, i) => {
    let top = height;
    for (const kind of ["decode", "verify", "prefill"]) {
      const tokens = step.slices.reduce((sum, s) => sum + (s.kind === kind ? s.q : 0), 0);
      const tall = (tokens / most) * (height - 4);
      pen.fillStyle = style.getPropertyValue("--" + kind);
      pen.fillRect(xOf(i, width), top - tall, Math.max(wide - 1, 1), tall);
      top -= tall;
    }
    if (step.outcome === "fail") {
      pen.fillStyle = style.getPropertyValue("--bad");
      pen.fillRect(xOf(i, width), 0, Math.max(wide - 1, 1), 3 * devicePixelRatio);
    }
  });
  pen.fillStyle = style.getPropertyValue("--line");
  pen.fillRect(0, height - devicePixelRatio, width, devicePixelRatio);
  pen.strokeStyle = style.getPropertyValue("--focus");
  pen.lineWidth = 2 * devicePixelRatio;
  pen.strokeRect(xOf(current, width), 1, Math.max(wide - 1, 2), height - 2);
}

const stride = (width) => Math.min(width / steps.length, 24 * devicePixelRatio);
const xOf = (index, width) => index * stride(width);

// -- one step ----------------------------------------------------------------------------------------------------

function drawStep() {
  const step = steps[current];
  const tokens = step.slices.reduce((sum, s) => sum + s.q, 0);
  at("step-title").textContent = step.step < 0 ? "A plan with nothing to run"
    : `Step ${step.step}: ${tokens} tokens in ${step.slices.length} slices`;
  at("number").value = step.step;
  at("summary").replaceChildren(...summary(step));
  list(at("happenings"), step.happenings.map(happening), "nothing");
  drawSlices(step);
  list(at("notes"), step.notes.map((n) => make("li", `${n.seq_id < 0 ? "queue" : nameOf(n.seq_id)}: ${n.why}`)), "none");
  drawPool(step);
}

function summary(step) {
  const end = step.outcome === "fail" ? `It failed: ${step.message}.`
    : step.back !== null ? `Its result came after ${((step.back - step.t) * 1e3).toFixed(3)} ms.`
    : step.step >= 0 ? "Its result is not in the recording." : "";
  const words = `At ${step.t.toFixed(6)} s. Left: ${step.left[0]} of ${step.budget[0]} tokens, ${step.left[1]} of ` +
    `${step.budget[1]} inputs, ${step.free} of ${data.numBlocks} blocks. Running: ${names(step.running)}. ` +
    `Waiting: ${names(step.waiting, 12, step.numWaiting)}. `;
  return [make("span", words), make("span", end, step.outcome === "fail" ? "bad" : "")];
}

function happening(h) {
  const item = make("li", "", h.kind === "fail" ? "bad" : "");
  item.append(make("span", `${h.t.toFixed(6)} s`, "time"), (h.seq_id >= 0 ? nameOf(h.seq_id) + " " : "") + h.text);
  return item;
}

function drawSlices(step) {
  const table = at("slices");
  const left = ["sequence", "what", "why", "blocks", "result"];
  const titles = ["sequence", "what", "given", "positions", "why", "computed", "tokens", "in flight", "promised",
    "budgets left", "blocks", "result"];
  const head = make("tr");
  for (const title of titles) {
    const th = make("th", title, left.includes(title) ? "left" : "");
    th.scope = "col";
    head.append(th);
  }
  const thead = make("thead"), body = make("tbody");
  thead.append(head);
  for (const slice of step.slices) body.append(sliceRow(slice));
  table.replaceChildren(thead, body);
}

function sliceRow(s) {
  const row = make("tr");
  const label = make("th", nameOf(s.id));
  label.scope = "row";
  const moments = (field) => {
    const shown = s.outcome === null && s.counts[2] === null ? s.counts.slice(0, 2) : s.counts;
    return make("td", shown.map((counts) => (counts === null ? "·" : counts[FIELDS.indexOf(field)])).join(" → "));
  };
  const kind = make("td", "", "left");
  kind.append(make("span", s.kind, "mark k-" + s.kind));
  row.append(label, kind, make("td", `${s.q} of ${s.need}`), make("td", s.q === 1 ? s.from : `${s.from}–${s.from + s.q - 1}`),
    make("td", s.why.replace(/^[^:]*: /, "") + (s.cached ? `; ${s.cached} cached` : ""), "words"),
    ...["computed", "tokens", "in flight", "promised"].map(moments),
    make("td", `${s.left[0]} / ${s.left[1]}`), make("td", blockWords(s), "words"), make("td", s.result ?? "not in", "words"));
  row.dataset.id = s.id;
  return row;
}

function blockWords(s) {
  const fresh = s.blocks.map((blocks) => blocks.filter((b) => b > 0).join(", ")).filter((words) => words);
  return fresh.length ? "+ " + fresh.join(" | ") : "none new";
}

function drawPool(step) {
  const held = tablesAt(current);
  const owners = new Map();
  for (const [id, tables] of held)
    for (const table of tables) for (const block of table) if (block) owners.set(block, [...(owners.get(block) ?? []), id]);
  const fresh = new Set(step.slices.flatMap((s) => s.blocks.flat()));
  const shared = [...owners.values()].filter((ids) => ids.length > 1).length;
  const next = step.next.length ? ` Next to be handed out: ${step.next.join(", ")}${step.free > step.next.length ? " …" : "."}` : "";
  at("pool-words").textContent =
    `${owners.size} of ${data.numBlocks} blocks are held, ${shared} of them shared; ${step.free} are free.${next}`;
  const pool = at("pool");
  pool.classList.toggle("dense", data.numBlocks > 512);
  const squares = [];
  for (let block = 1; block <= Math.min(data.numBlocks, MAX_SQUARES); block++) {
    const ids = owners.get(block) ?? [];
    const square = make("i", block, ids.length > 1 ? "shared" : ids.length ? "held" : "");
    if (fresh.has(block)) square.classList.add("new");
    square.title = `block ${block}: ${ids.length ? names(ids) : "free"}`;
    square.dataset.owners = ids.join(" ");
    squares.push(square);
  }
  pool.replaceChildren(...squares);
  list(at("tables"), [...held].map(([id, tables]) =>
    make("li", `${nameOf(id)}: ${tables.map((t) => "[" + t.join(", ") + "]").join(" ")}`)), "none");
}

function light(id) {
  for (const square of at("pool").children)
    square.classList.toggle("lit", id !== undefined && square.dataset.owners.split(" ").includes(id));
}

// -- moving about ------------------------------------------------------------------------------------------------

function go(index) {
  if (!steps.length) return;
  current = Math.max(0, Math.min(steps.length - 1, index));
  drawTimeline();
  drawOverview();
  drawStep();
  history.replaceState(null, "", "#step=" + steps[current].step);
}

function goToStep(number) {
  const index = steps.findIndex((s) => s.step >= number);
  go(index < 0 ? steps.length - 1 : index);
}

const MOVES = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
const BUTTONS = { first: -Infinity, back: -1, next: 1, last: Infinity };

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.tagName === "INPUT" || !(event.key in MOVES)) return;
  event.preventDefault();
  go(current + MOVES[event.key]);
});
document.querySelector("nav").addEventListener("click", (event) => {
  const move = BUTTONS[event.target.dataset.go];
  if (move !== undefined) go(current + move);
});
at("number").addEventListener("change", (event) => goToStep(Number(event.target.value)));
at("timeline").addEventListener("click", (event) => {
  const cell = event.target.closest("[data-index]");
  if (cell) go(Number(cell.dataset.index));
});
at("overview").addEventListener("click", (event) =>
  go(Math.floor(event.offsetX * devicePixelRatio / stride(at("overview").width))));
at("slices").addEventListener("pointerover", (event) => light(event.target.closest("tbody tr")?.dataset.id));
at("slices").addEventListener("pointerleave", () => light());
addEventListener("resize", () => steps.length && drawOverview());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => steps.length && drawOverview());

function start() {
  const knobs = Object.entries(data.core).map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ");
  const when = data.time ? new Date(data.time * 1e3).toISOString() : "a worked example";
  at("facts").textContent = `${data.file} · ${data.numSteps} steps · headrace ${data.headrace} · ${when} · ${knobs}`;
  const verdict = data.difference ? `Replay differs, the story ends there: ${data.difference}`
    : `Replayed: every plan of the ${steps.length} steps shown came out as recorded.`;
  at("verdict").textContent = verdict + (data.truncated ? " The last line was cut off and is left out." : "");
  at("verdict").className = data.difference ? "bad" : "hint";
  const asked = /^#step=(\d+)$/.exec(location.hash);
  if (!steps.length) at("step-title").textContent = "No steps";
  else if (asked) goToStep(Number(asked[1]));
  else go(0);
}

start();
