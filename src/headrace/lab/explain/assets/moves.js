// Moving about: keys, buttons, clicks; and the start.

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
  const elsewhere = event.altKey || event.ctrlKey || event.metaKey || event.target.tagName === "INPUT";
  if (elsewhere || !(event.key in MOVES)) return;
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
  const knobs = Object.entries(data.core).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
  const when = data.time ? new Date(data.time * 1e3).toISOString() : "a worked example";
  at("facts").textContent =
    `${data.file} · ${data.numSteps} steps · headrace ${data.headrace} · ${when} · ${knobs.join(", ")}`;
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
