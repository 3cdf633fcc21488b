// The model at a base, through the providers of the AI SDK in a folder of packages, by their names.
import { createRequire } from "node:module";
import { join } from "node:path";

export function providers(packages, base, model) {
  const from = createRequire(join(packages, "any.js"));
  const { createOpenAI } = from("@ai-sdk/openai");
  const { createAnthropic } = from("@ai-sdk/anthropic");
  const { createOpenAICompatible } = from("@ai-sdk/openai-compatible");

  const shared = { baseURL: `${base}/v1`, apiKey: "any" };
  const openai = createOpenAI(shared);
  const compatible = createOpenAICompatible({ ...shared, name: "pagoda", includeUsage: true, supportsStructuredOutputs: true });
  return {
    "openai, responses": openai(model),
    "openai, chat": openai.chat(model),
    anthropic: createAnthropic(shared)(model),
    compatible: compatible(model),
  };
}
