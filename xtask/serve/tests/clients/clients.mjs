// Calls a server with OpenAI's client for Node.js: clients.mjs PACKAGES BASE_URL MODEL.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const [packages, base, model] = process.argv.slice(2);
const OpenAI = createRequire(join(packages, "any.js"))("openai");
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: "hello" }];
const schema = {
  type: "object",
  properties: { x: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["x"],
  additionalProperties: false,
};

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

async function models() {
  const listed = await collect(client.models.list());
  assert.deepEqual(listed.map(({ id }) => id), [model]);
}

async function chat() {
  const fields = { model, messages, max_completion_tokens: 8, temperature: 0 };
  const whole = await client.chat.completions.create(fields);
  const [{ message, finish_reason }] = whole.choices;
  const options = { stream: true, stream_options: { include_usage: true } };
  const chunks = await collect(await client.chat.completions.create({ ...fields, ...options }));
  const usage = chunks.pop();
  assert.deepEqual([usage.choices, usage.usage.total_tokens], [[], whole.usage.total_tokens]);
  assert.equal(chunks.map(({ choices: [{ delta }] }) => delta.content ?? "").join(""), message.content);
  assert.equal(chunks.at(-1).choices[0].finish_reason, finish_reason);
  const helper = await client.chat.completions.stream(fields).finalChatCompletion();
  assert.equal(helper.choices[0].message.content, message.content);
}

async function tools() {
  const doubled = [];
  const tool = {
    type: "function",
    function: { name: "double", parameters: schema, parse: JSON.parse, function: ({ x }) => doubled.push(x) && `${2 * x}` },
  };
  const fields = { model, messages, tools: [tool], max_completion_tokens: 100 };
  // The client calls the function, and sends the conversation back with its result.
  const runner = client.chat.completions.runTools(
    { ...fields, tool_choice: { type: "function", function: { name: "double" } } }, { maxChatCompletions: 2 });
  await runner.done();
  assert.equal(doubled.length >= 1 && doubled.every((x) => x >= 1 && x <= 9), true, `${doubled}`);
}

async function responses() {
  const fields = { model, input: "hello", max_output_tokens: 8, temperature: 0 };
  const whole = await client.responses.create(fields);
  const stream = client.responses.stream(fields);
  const deltas = (await collect(stream)).filter(({ type }) => type === "response.output_text.delta");
  assert.equal(deltas.map(({ delta }) => delta).join(""), whole.output_text);
  assert.equal((await stream.finalResponse()).usage.total_tokens, whole.usage.total_tokens);
}

async function aborted() {
  const fields = { model, messages, max_completion_tokens: 500, stream: true };
  const stream = await client.chat.completions.create(fields);
  for await (const _ of stream) break;
  assert.equal(stream.controller.signal.aborted, true);
}

async function errors() {
  const refused = async (fields) => {
    try {
      await client.chat.completions.create({ model, messages, ...fields });
    } catch (error) {
      return error;
    }
    assert.fail("the call was taken");
  };
  const other = await client.chat.completions.create({ model: "other", messages, max_completion_tokens: 2 });
  assert.equal(other.model, model, "a server of one model answers for any name");
  const wrong = await refused({ temperature: -1 });
  assert.deepEqual([wrong.constructor, wrong.param], [OpenAI.BadRequestError, "temperature"]);
}

for (const part of [models, chat, tools, responses, aborted, errors]) {
  await part();
  console.log(part.name, "ok");
}
