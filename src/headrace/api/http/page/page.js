// The page's conversation, over the public API. What a model or an error says is text, never markup.

import { served } from "./load.js";

const find = (id) => document.getElementById(id);
let history = [];
const empty = find("empty");
let running = null; // the AbortController of the answer in progress

function say(role, text) {
  empty.remove();
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
  const response = await fetch(served.chats ? "/v1/chat/completions" : "/v1/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...credentials() },
    signal,
    body: JSON.stringify({
      ...(served.chats ? { messages: history } : { prompt: history.at(-1).content }),
      stream: true,
      stream_options: { include_usage: true },
      temperature: Number(find("temperature").value),
      max_tokens: Number(find("max-tokens").value),
    }),
  });
  if (!response.ok) throw new Error(await refusal(response));
  return response;
}

async function refusal(response) {
  if (response.status === 401) {
    find("key").focus();
    return "This server asks for an API key: enter a valid one in the field “API key”, then send again.";
  }
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with ${response.status}`; // a proxy's page, say
  }
}

async function answer(asked) {
  const conversation = history; // "New conversation" begins another one while this answer may still come
  const line = say("assistant", "");
  const began = performance.now();
  let first = null;
  let usage = null;
  let thoughts = null;
  let complete = false;
  running = new AbortController();
  busy(true);
  try {
    for await (const data of events(await ask(running.signal))) {
      complete = data === "[DONE]";
      if (complete) break;
      const news = JSON.parse(data);
      if (news.error) throw new Error(news.error.message);
      usage = news.usage ?? usage;
      const said = news.choices[0] ?? {};
      const { content = said.text, reasoning_content: thought } = said.delta ?? {};
      if (!content && !thought) continue;
      first ??= performance.now();
      if (thought) (thoughts ??= think(line)).textContent += thought;
      if (content) line.textContent += content;
      follow();
    }
    if (!complete) throw new Error("the connection ended before the answer did");
    find("status").textContent = summary(usage, began, first);
  } catch (error) {
    if (conversation === history) tell(error);
  } finally {
    if (line.textContent) conversation.push({ role: "assistant", content: line.textContent });
    else unsay(conversation, line, asked);
    running = null;
    busy(false);
  }
}

// Thoughts stand before the answer and are no part of the conversation.
function think(line) {
  const thoughts = say("thought", "");
  line.before(thoughts);
  return thoughts;
}

function tell(error) {
  if (error.name === "AbortError") find("status").textContent = "Stopped.";
  else say("error", error.message);
}

// Without an answer the question is no part of the conversation: templates want turns. It may be sent again.
function unsay(conversation, line, asked) {
  line.remove();
  const question = conversation.pop();
  asked.classList.add("unanswered");
  if (conversation === history) find("said").value ||= question.content;
}

function summary(usage, began, first) {
  if (first === null) return "The model said nothing.";
  if (!usage) return "";
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
  find("status").textContent = "";
  history.push({ role: "user", content: text });
  answer(say("user", text));
});

find("said").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("form").requestSubmit();
});

find("stop").addEventListener("click", () => running?.abort());

find("clear").addEventListener("click", () => {
  running?.abort();
  history = [];
  find("log").replaceChildren(empty);
  find("status").textContent = "";
  find("said").focus();
});

find("said").focus();
