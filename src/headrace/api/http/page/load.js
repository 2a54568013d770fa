// The engine's load on the page, once a second, and with an admin's key the tenants. All of it is put in as text.

const find = (id) => document.getElementById(id);
export const served = { chats: true }; // false: the model has no chat template and continues plain text
const rates = [];
let before = null;

function draw() {
  const top = Math.max(1, ...rates);
  const points = rates.map((rate, i) => `${(i + 120 - rates.length) * 2},${58 - (rate / top) * 54}`);
  find("line").setAttribute("points", points.join(" "));
}

function showSteps(steps) {
  if (!steps.length) return;
  const rows = steps.slice(-6).reverse().map((step) => {
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
  served.chats = load.chats;
  find("base-note").hidden = load.chats;
  find("key-row").hidden = !load.needs_key;
  find("models-link").hidden = load.needs_key; // a link cannot send the key
  find("running").textContent = load.running;
  find("waiting").textContent = load.waiting;
  find("kv-meter").value = load.kv_usage;
  find("kv").textContent = `${(load.kv_usage * 100).toFixed(1)} %`;
  find("hits").textContent = load.prefix_queries ? `${((100 * load.prefix_hits) / load.prefix_queries).toFixed(0)} %` : "–";
  find("preemptions").textContent = load.preemptions;
  find("tokens").textContent = load.generation_tokens;
  showSteps(load.last_steps);
}

let adminKey = ""; // the key that was entered, until it turns out to be no admin's

find("key").addEventListener("change", async () => {
  const key = find("key").value.trim();
  adminKey = /^[\x21-\x7e]+$/.test(key) ? key : ""; // others cannot be sent in a header
  find("tenants").hidden = true;
  await watchTenants();
});

async function watchTenants() {
  const key = adminKey;
  if (!key) return;
  try {
    const response = await fetch("/admin/tenants", { headers: { authorization: `Bearer ${key}` } });
    const told = await response.json();
    if (key !== adminKey) return; // another one was entered meanwhile
    if (response.status === 401 || response.status === 403) adminKey = "";
    find("tenants").hidden = !adminKey;
    find("tenants-note").textContent = response.ok ? "" : told.error.message;
    if (response.ok) showTenants(told.tenants);
  } catch {
    find("tenants-note").textContent = "the server does not tell";
  }
}

function showTenants(tenants) {
  const labels = [...document.querySelectorAll("#tenants thead th")].map((heading) => heading.textContent);
  const rows = tenants.map((tenant) => {
    const row = document.createElement("tr");
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = tenant.name;
    row.append(name);
    const { prompt_tokens = 0, cached_tokens = 0, generation_tokens = 0 } = tenant.usage;
    for (const count of [tenant.running, tenant.waiting, prompt_tokens, cached_tokens, generation_tokens, tenant.weight]) {
      row.insertCell().textContent = count.toLocaleString("en");
    }
    row.insertCell().textContent = left(tenant.requests_left, tenant.requests_per_min);
    row.insertCell().textContent = left(tenant.tokens_left, tenant.tokens_per_min);
    [...row.cells].forEach((cell, i) => (cell.dataset.label = labels[i]));
    return row;
  });
  find("tenant-rows").replaceChildren(...rows);
}

function left(count, limit) {
  return limit === null ? "no limit" : `${count.toLocaleString("en")} of ${limit.toLocaleString("en")}`;
}

async function watch() {
  try {
    await look();
    await watchTenants();
  } catch {
    find("model").textContent = "the server does not answer";
  }
  setTimeout(watch, document.hidden ? 5000 : 1000);
}

watch();
