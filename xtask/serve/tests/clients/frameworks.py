"""Calls a server with the frameworks that programs in Python are built on: frameworks.py PART BASE_URL MODEL."""

import json
import sys
from typing import Literal

PART, BASE, MODEL = sys.argv[1:]
V1 = f"{BASE}/v1"
HELLO = [{"role": "user", "content": "hello"}]
# Of bounds of a number, Anthropic's client makes a description. Forms forbid other fields, which random weights write without end.
X = Literal[1, 2, 3, 4]


def litellm():
    import litellm
    import pydantic

    class Form(pydantic.BaseModel, extra="forbid"):
        x: X

    parameters = Form.model_json_schema() | {"additionalProperties": False}
    tool = {"type": "function", "function": {"name": "double", "description": "doubles x", "parameters": parameters}}
    for name, base in [("openai", V1), ("hosted_vllm", V1), ("anthropic", BASE)]:
        fields = {"model": f"{name}/{MODEL}", "api_base": base, "api_key": "any", "messages": HELLO, "num_retries": 0}
        short = fields | {"max_tokens": 8, "temperature": 0}
        whole = litellm.completion(**short)
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, name
        chunks = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **short))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content, name
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens, name
        called = litellm.completion(tools=[tool], tool_choice="required", max_tokens=100, **fields).choices[0]
        call = called.message.tool_calls[0].function
        assert (called.finish_reason, call.name) == ("tool_calls", "double"), name
        assert json.loads(call.arguments)["x"] in (1, 2, 3, 4), name
        if name != "anthropic":  # There, LiteLLM asks for a form by a tool of its own unless it knows the model.
            formed = litellm.completion(response_format=Form, max_tokens=100, **fields)
            Form.model_validate_json(formed.choices[0].message.content)


def langchain():
    import langchain_anthropic
    import langchain_openai
    import pydantic

    class Double(pydantic.BaseModel, extra="forbid"):
        """Doubles x."""

        x: X

    common = {"model": MODEL, "api_key": "any", "max_retries": 0}
    openai = {"base_url": V1, "stream_usage": True}

    def chats(**fields):
        yield langchain_openai.ChatOpenAI(**common, **openai, **fields)
        yield langchain_openai.ChatOpenAI(use_responses_api=True, **common, **openai, **fields)
        yield langchain_anthropic.ChatAnthropic(base_url=BASE, **common, **fields)

    for chat in chats(max_tokens=8, temperature=0):
        whole = chat.invoke("hello")
        parts = list(chat.stream("hello"))
        added = parts[0]
        for part in parts[1:]:
            added += part
        assert added.text == whole.text, chat
        assert added.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] >= 1, chat
    for chat in chats(max_tokens=100):
        call = chat.bind_tools([Double], tool_choice="any").invoke("hello").tool_calls[0]
        assert call["name"] == "Double" and call["args"]["x"] in (1, 2, 3, 4), chat
        for method in ["json_schema", "function_calling"]:
            form = chat.with_structured_output(Double, method=method).invoke("hello")
            assert isinstance(form, Double), (chat, method)


def pydantic_ai():
    import asyncio

    import pydantic
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    class Form(pydantic.BaseModel, extra="forbid"):
        x: X

    openai = OpenAIProvider(base_url=V1, api_key="any")
    claude = AnthropicProvider(base_url=BASE, api_key="any")
    models = [OpenAIChatModel(MODEL, provider=openai), OpenAIResponsesModel(MODEL, provider=openai),
              AnthropicModel(MODEL, provider=claude)]
    short = {"max_tokens": 8, "temperature": 0}

    async def streamed(agent):
        async with agent.run_stream("hello", model_settings=short) as run:
            return [part async for part in run.stream_text(delta=True)]

    for model in models:
        agent = Agent(model, instructions="be brief")
        whole = agent.run_sync("hello", model_settings=short)
        assert whole.usage.output_tokens >= 1 and whole.usage.input_tokens > 10, model
        assert "".join(asyncio.run(streamed(agent))) == whole.output, model
        # A form as a tool that must be called, and by the schema of the answer; of Claude's models it knows those with the latter.
        forms = [ToolOutput(Form), NativeOutput(Form)] if model is not models[2] else [ToolOutput(Form)]
        for output in forms:
            form = Agent(model, output_type=output).run_sync("hello", model_settings={"max_tokens": 100})
            assert isinstance(form.output, Form), (model, output)


{"litellm": litellm, "langchain": langchain, "pydantic_ai": pydantic_ai}[PART]()
print(PART, "ok")
