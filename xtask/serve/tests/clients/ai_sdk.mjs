// Calls a server with the AI SDK: ai-sdk.mjs PACKAGES BASE_URL MODEL.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { providers } from "./providers.mjs";

const [packages, base, model] = process.argv.slice(2);
const from = createRequire(join(packages, "any.js"));
const { generateText, streamText, tool, Output } = from("ai");
const { z } = from("zod");

const schema = z.object({ x: z.literal([1, 2, 3, 4]) });

const models = providers(packages, base, model);
for (const [name, model] of Object.entries(models)) {
  const fields = { model, prompt: "hello", system: "be brief", maxRetries: 0 };
  const short = { ...fields, maxOutputTokens: 8, temperature: 0 };
  const whole = await generateText(short);
  assert.equal(whole.usage.outputTokens >= 1 && whole.usage.inputTokens > 10, true, name);
  const stream = streamText({ ...short, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const delta of stream.textStream) text += delta;
  assert.deepEqual([text, await stream.finishReason], [whole.text, whole.finishReason], name);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens, name);

  const double = tool({ description: "doubles x", inputSchema: schema, execute: async ({ x }) => 2 * x });
  const called = await generateText({ ...fields, tools: { double }, toolChoice: "required", maxOutputTokens: 100 });
  const [{ toolName, input }] = called.toolCalls;
  assert.equal(toolName, "double", name);
  assert.equal(called.toolResults[0].output, 2 * input.x, name);
  assert.equal(called.finishReason, "tool-calls", name);

  const form = await generateText({ ...fields, output: Output.object({ schema }), maxOutputTokens: 100 });
  assert.equal([1, 2, 3, 4].includes(form.output.x), true, name);
  console.log(name, "ok");
}
