// One step in detail: what happened before it, its slices, remarks, and the block pool.

function drawStep() {
  const step = steps[current];
  const tokens = step.slices.reduce((sum, s) => sum + s.q, 0);
  at("step-title").textContent = step.step < 0 ? "A plan with nothing to run"
    : `Step ${step.step}: ${amount(tokens, "token")} in ${amount(step.slices.length, "slice")}`;
  at("number").value = step.step;
  at("summary").replaceChildren(...summary(step));
  list(at("happenings"), step.happenings.map(happening), "nothing");
  drawSlices(step);
  const who = (note) => (note.seq_id < 0 ? "queue" : nameOf(note.seq_id));
  list(at("notes"), step.notes.map((note) => make("li", `${who(note)}: ${note.why}`)), "none");
  drawPool(step);
}

function summary(step) {
  const end = step.outcome === "fail" ? `It failed: ${step.message}.`
    : step.back !== null ? `Its result came after ${((step.back - step.t) * 1e3).toFixed(3)} ms.`
    : step.step >= 0 ? "Its result is not in the recording." : "";
  const words = `At ${step.t.toFixed(6)} s. Left: ${step.left[0]} of ${step.budget[0]} tokens, ` +
    `${step.left[1]} of ${step.budget[1]} inputs, ${step.free} of ${data.numBlocks} blocks. ` +
    `Running: ${names(step.running)}. Waiting: ${names(step.waiting, 12, step.numWaiting)}. `;
  return [make("span", words), make("span", end, step.outcome === "fail" ? "bad" : "")];
}

function happening(h) {
  const item = make("li", "", h.kind === "fail" ? "bad" : "");
  const who = h.seq_id >= 0 ? nameOf(h.seq_id) + " " : "";
  item.append(make("span", `${h.t.toFixed(6)} s`, "time"), who + h.text);
  return item;
}

function drawSlices(step) {
  const table = at("slices");
  const left = ["sequence", "what", "why", "blocks", "result"];
  const titles = ["sequence", "what", "given", "positions", "why", "computed", "tokens", "in flight",
    "promised", "budgets left", "blocks", "result"];
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
    const count = (counts) => (counts === null ? "·" : counts[FIELDS.indexOf(field)]);
    return make("td", shown.map(count).join(" → "));
  };
  const kind = make("td", "", "left");
  kind.append(make("span", s.kind, "mark k-" + s.kind));
  row.append(
    label,
    kind,
    make("td", `${s.q} of ${s.need}`),
    make("td", s.q === 1 ? s.from : `${s.from}–${s.from + s.q - 1}`),
    make("td", s.why.replace(/^[^:]*: /, "") + (s.cached ? `; ${s.cached} cached` : ""), "words"),
    ...["computed", "tokens", "in flight", "promised"].map(moments),
    make("td", `${s.left[0]} / ${s.left[1]}`),
    make("td", blockWords(s), "words"),
    make("td", s.result ?? "not in", "words"),
  );
  row.dataset.id = s.id;
  return row;
}

function blockWords(s) {
  const fresh = s.blocks.map((blocks) => blocks.filter((b) => b > 0).join(", ")).filter((words) => words);
  return fresh.length ? "+ " + fresh.join(" | ") : "none new";
}

// Which sequences hold each block.
function ownersOf(held) {
  const owners = new Map();
  for (const [id, tables] of held)
    for (const block of tables.flat()) if (block) owners.set(block, [...(owners.get(block) ?? []), id]);
  return owners;
}

function drawPool(step) {
  const held = tablesAt(current);
  const owners = ownersOf(held);
  const fresh = new Set(step.slices.flatMap((s) => s.blocks.flat()));
  const shared = [...owners.values()].filter((ids) => ids.length > 1).length;
  const more = step.free > step.next.length ? " …" : ".";
  at("pool-words").textContent =
    `${owners.size} of ${data.numBlocks} blocks are held, ${shared} of them shared; ${step.free} are free.` +
    (step.next.length ? ` Next to be handed out: ${step.next.join(", ")}${more}` : "");
  const pool = at("pool");
  pool.classList.toggle("dense", data.numBlocks > 512);
  const squares = [];
  for (let block = 1; block <= Math.min(data.numBlocks, MAX_SQUARES); block++)
    squares.push(blockSquare(block, owners.get(block) ?? [], fresh.has(block)));
  pool.replaceChildren(...squares);
  list(at("tables"), [...held].map(([id, tables]) =>
    make("li", `${nameOf(id)}: ${tables.map((t) => "[" + t.join(", ") + "]").join(" ")}`)), "none");
}

function blockSquare(block, ids, isNew) {
  const square = make("i", block, ids.length > 1 ? "shared" : ids.length ? "held" : "");
  square.classList.toggle("new", isNew);
  square.title = `block ${block}: ${ids.length ? names(ids) : "free"}`;
  square.dataset.owners = ids.join(" ");
  return square;
}

function light(id) {
  for (const square of at("pool").children)
    square.classList.toggle("lit", id !== undefined && square.dataset.owners.split(" ").includes(id));
}
