// OpenAI's JavaScript client against a running server. Not part of CI. In a folder of its own: `npm install openai`,
// copy this file there, start `headrace serve`, then `node check_clients.mjs http://127.0.0.1:8000`. Prints one line
// per check; exits with 1 when one failed.

import OpenAI from "openai";
import assert from "node:assert/strict";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Say hello." }];
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", description: "Looks it up", parameters } }];

const checks = {
  async chat() {
    const answer = await client.chat.completions.create({ model, messages, max_completion_tokens: 16, logprobs: true });
    assert.ok(answer.choices[0].logprobs.content[0].logprob <= 0);
    assert.ok(answer.usage.completion_tokens > 0);
  },
  async stream() {
    const wanted = { model, messages, max_tokens: 16, temperature: 0 };
    const whole = (await client.chat.completions.create(wanted)).choices[0].message.content;
    let text = "";
    let usage = null;
    const options = { ...wanted, stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create(options)) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole);
    assert.ok(usage.total_tokens > 0);
  },
  async left_stream() {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 500, stream: true });
    for await (const _ of stream) break; // the client aborts the request
  },
  async tools() {
    const wanted = { model, messages, tools, tool_choice: "required", max_tokens: 100, temperature: 0 };
    const [call] = (await client.chat.completions.create(wanted)).choices[0].message.tool_calls;
    assert.equal(call.function.name, "weather");
    assert.equal(typeof JSON.parse(call.function.arguments).city, "string");
  },
  async run_tools() {
    const weather = { ...tools[0].function, parse: JSON.parse, function: () => "sunny" };
    const tool = { type: "function", function: weather };
    const wanted = { model, messages, tools: [tool], max_tokens: 300, temperature: 0 };
    const runner = client.chat.completions.runTools(wanted);
    assert.equal(typeof (await runner.finalContent()), "string");
  },
  async json_schema() {
    const format = { type: "json_schema", json_schema: { name: "place", strict: true, schema: parameters } };
    const answer = await client.chat.completions.create({ model, messages, response_format: format, max_tokens: 100 });
    if (answer.choices[0].finish_reason === "stop") JSON.parse(answer.choices[0].message.content);
  },
  async completion() {
    const wanted = { model, prompt: "One, two,", max_tokens: 4, echo: true, logprobs: 1 };
    const answer = await client.completions.create(wanted);
    assert.ok(answer.choices[0].text.startsWith("One, two,"));
  },
  async responses() {
    const answer = await client.responses.create({ model, input: "Say hello.", max_output_tokens: 16 });
    assert.equal(typeof answer.output_text, "string");
    const kinds = [];
    for await (const event of await client.responses.create({ model, input: "Hi", max_output_tokens: 8, stream: true }))
      kinds.push(event.type);
    assert.equal(kinds[0], "response.created");
    assert.ok(["response.completed", "response.incomplete"].includes(kinds.at(-1)));
  },
  async refusals() {
    await assert.rejects(client.chat.completions.create({ model: "no-such", messages }), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create({ model, messages, top_p: 9 }), OpenAI.BadRequestError);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok    ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${error.message}`);
  }
}
process.exit(failed ? 1 : 0);
