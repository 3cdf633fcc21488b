// Agents of the AI SDK and of OpenAI's client, which call a tool that reads files: loops.mjs PACKAGES BASE_URL MODEL FOLDER.
// The model answers by a script, and says that the secret was read only if the result of the tool has it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { providers } from "./providers.mjs";

const [packages, base, model, folder] = process.argv.slice(2);
const from = createRequire(join(packages, "any.js"));
const { generateText, streamText, stepCountIs, tool, Output } = from("ai");
const { z } = from("zod");
const OpenAI = from("openai");

const [look, form] = ["look into both files", "look into both files, and answer as a form"];
const [first, read] = ["I look. ", "The secret was read: é😀."];
const looked = [];
const execute = ({ file }) => looked.push(file) && readFileSync(join(folder, file), "utf8");
const both = ["secret.txt", "empty.txt"];
const hasLooked = (name, files = both) => assert.deepEqual(looked.splice(0), files, name);
const warned = [];
globalThis.AI_SDK_LOG_WARNINGS = ({ warnings }) => warned.push(...warnings);

const models = providers(packages, base, model);
for (const [name, model] of Object.entries(models)) {
  const tools = { look: tool({ description: "reads a file", inputSchema: z.object({ file: z.string() }), execute }) };
  // Without the option, it sends back references to messages, which no server without a store of responses can follow.
  const providerOptions = { openai: { store: false } };
  const fields = { model, tools, providerOptions, stopWhen: stepCountIs(3), maxRetries: 0, maxOutputTokens: 400 };
  const whole = await generateText({ ...fields, prompt: look });
  hasLooked(name);
  assert.deepEqual([whole.text, whole.finishReason, whole.steps.length], [read, "stop", 2], name);
  assert.deepEqual([whole.steps[0].text, whole.steps[0].finishReason], [first, "tool-calls"], name);

  const stream = streamText({ ...fields, prompt: look, onError: ({ error }) => { throw error; } });
  const parts = [];
  for await (const part of stream.fullStream) parts.push(part);
  hasLooked(name);
  const kinds = new Map(parts.map(({ type }) => [type, parts.filter((part) => part.type === type).length]));
  assert.deepEqual([kinds.get("tool-call"), kinds.get("tool-result"), kinds.get("finish-step")], [2, 2, 2], name);
  assert.equal(kinds.get("tool-input-delta") > 4, true, `${name}: arguments come in pieces`);
  assert.deepEqual([await stream.text, (await stream.steps).length], [read, 2], name);

  const formed = await generateText({ ...fields, prompt: form, output: Output.object({ schema: z.object({ lions: z.int() }) }) });
  // Claude's models that it does not know have a form by a tool, and must call one at a time.
  hasLooked(name, name === "anthropic" ? both.slice(0, 1) : both);
  assert.deepEqual(formed.output, { lions: 4711 }, name);
  if (name === "openai, responses") {
    const byReference = await generateText({ ...fields, providerOptions: {}, prompt: `${look}, and think` });
    hasLooked(name);
    assert.equal(byReference.text, read, "thoughts are sent back as references");
  }
  // Where it stores nothing, it sends back no thoughts that are not encrypted.
  const warnings = warned.splice(0).filter(({ message }) => !message?.startsWith("Reasoning parts without encrypted content"));
  assert.deepEqual(warnings, [], name);
  console.log(name, "ok");
}

const parameters = { type: "object", properties: { file: { type: "string" } }, required: ["file"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "look", parameters, parse: JSON.parse, function: execute } }];
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "any", maxRetries: 0 });
for (const stream of [false, true]) {
  const runner = client.chat.completions.runTools({ model, tools, stream, messages: [{ role: "user", content: look }] });
  assert.equal(await runner.finalContent(), read);
  hasLooked("runTools");
}
console.log("openai ok");
