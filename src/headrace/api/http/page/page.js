// The page at "/": a conversation over the public API, and the engine's load. What a model says is text, never markup.

const find = (id) => document.getElementById(id);
const history = [];
let running = null; // the AbortController of the answer in progress

function say(role, text) {
  find("empty")?.remove();
  const line = document.createElement("p");
  line.className = role;
  line.textContent = text;
  find("log").append(line);
  follow();
  return line;
}

function follow() {
  const log = find("log");
  log.scrollTop = log.scrollHeight;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (pending + value).split("\n");
    pending = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

function credentials() {
  const key = find("key").value.trim(); // stays in the page: nothing is stored
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function ask(signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...credentials() },
    signal,
    body: JSON.stringify({
      messages: history,
      stream: true,
      stream_options: { include_usage: true },
      temperature: Number(find("temperature").value),
      max_tokens: Number(find("max-tokens").value),
    }),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  return response;
}

async function answer() {
  const line = say("assistant", "");
  const began = performance.now();
  let first = null;
  let usage = null;
  running = new AbortController();
  busy(true);
  try {
    for await (const data of events(await ask(running.signal))) {
      if (data === "[DONE]") break;
      const news = JSON.parse(data);
      if (news.error) throw new Error(news.error.message);
      usage = news.usage ?? usage;
      const text = news.choices[0]?.delta.content;
      if (!text) continue;
      first ??= performance.now();
      line.textContent += text;
      follow();
    }
    find("status").textContent = summary(usage, began, first);
  } catch (error) {
    if (error.name === "AbortError") find("status").textContent = "Stopped.";
    else say("error", error.message);
  } finally {
    if (line.textContent) history.push({ role: "assistant", content: line.textContent });
    else line.remove();
    running = null;
    busy(false);
  }
}

function summary(usage, began, first) {
  if (!usage || first === null) return "";
  const seconds = (performance.now() - first) / 1000;
  const rate = usage.completion_tokens > 1 && seconds > 0 ? (usage.completion_tokens - 1) / seconds : 0;
  return `${usage.prompt_tokens} prompt tokens (${usage.prompt_tokens_details.cached_tokens} from cache), ` +
    `${usage.completion_tokens} generated; first after ${Math.round(first - began)} ms, then ${rate.toFixed(1)} per second`;
}

function busy(yes) {
  find("send").disabled = yes;
  find("stop").disabled = !yes;
  find("log").setAttribute("aria-busy", String(yes));
}

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = find("said").value.trim();
  if (!text || running) return;
  find("said").value = "";
  history.push({ role: "user", content: text });
  say("user", text);
  answer();
});

find("said").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("form").requestSubmit();
});

find("stop").addEventListener("click", () => running?.abort());

find("clear").addEventListener("click", () => {
  running?.abort();
  history.length = 0;
  find("log").replaceChildren();
  find("status").textContent = "";
  find("said").focus();
});

const rates = [];
let before = null;

function draw() {
  const top = Math.max(1, ...rates);
  const points = rates.map((rate, i) => `${(i + 120 - rates.length) * 2},${58 - (rate / top) * 54}`);
  find("line").setAttribute("points", points.join(" "));
}

function tell(steps) {
  if (!steps.length) return;
  const rows = steps.slice(-8).reverse().map((step) => {
    const row = document.createElement("tr");
    row.title = `${step.budget_left} tokens of the budget left, ${step.free_blocks} blocks free, ${step.waiting} sequences waiting`;
    for (const cell of [step.step, step.kind, step.sequences, step.tokens, step.ms === null ? "…" : step.ms.toFixed(1)]) {
      row.insertCell().textContent = cell;
    }
    return row;
  });
  find("steps").replaceChildren(...rows);
}

async function look() {
  const load = await (await fetch("/load")).json();
  const now = performance.now();
  if (before !== null && load.generation_tokens >= before.tokens) {
    rates.push(((load.generation_tokens - before.tokens) * 1000) / (now - before.at));
    if (rates.length > 120) rates.shift();
    find("rate").textContent = rates.at(-1).toFixed(1);
    draw();
  }
  before = { tokens: load.generation_tokens, at: now };
  find("model").textContent = `${load.model} · ${load.ready ? "ready" : "not ready"}`;
  find("key-row").hidden = !load.needs_key;
  find("running").textContent = load.running;
  find("waiting").textContent = load.waiting;
  find("kv-meter").value = load.kv_usage;
  find("kv").textContent = `${(load.kv_usage * 100).toFixed(1)} %`;
  find("hits").textContent = load.prefix_queries ? `${((100 * load.prefix_hits) / load.prefix_queries).toFixed(0)} %` : "–";
  find("preemptions").textContent = load.preemptions;
  find("tokens").textContent = load.generation_tokens;
  tell(load.last_steps);
}

async function watch() {
  try {
    await look();
  } catch {
    find("model").textContent = "the server does not answer";
  }
  setTimeout(watch, document.hidden ? 5000 : 1000);
}

watch();
find("said").focus();
