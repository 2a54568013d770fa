// The timeline: a table of the steps around the current one, and an overview of all of them.

function cellOf(step, id) {
  const slice = step.slices.find((s) => s.id === id);
  if (slice) {
    const words = `${slice.kind}, ${slice.why}`;
    const isVoid = ["gone", "dropped", "failed"].includes(slice.outcome);
    return { kind: slice.kind, mark: slice.q, ended: Boolean(slice.finish), isVoid, words };
  }
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
  for (const step of shown)
    for (const id of [...step.running, ...step.waiting, ...step.slices.map((s) => s.id)]) ids.add(id);
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
      td.classList.toggle("void", Boolean(cell.isVoid));
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
