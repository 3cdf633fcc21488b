"""Agents of several frameworks, which call a tool that reads files: loops.py PART BASE_URL MODEL FOLDER.

The model answers by a script, and says that the secret was read only if the result of the tool has it.
"""

import json
import sys
from pathlib import Path

import pydantic

PART, BASE, MODEL, FOLDER = sys.argv[1:]
V1 = f"{BASE}/v1"
LOOK, FORM = "look into both files", "look into both files, and answer as a form"
FIRST, READ = "I look. ", "The secret was read: é😀."
THOUGHT = "Two files."
FILES = ["secret.txt", "empty.txt"]
looked = []


def read(file):
    looked.append(file)
    return Path(FOLDER, file).read_text()


def has_looked(files=FILES):
    # Some frameworks run tools at the same time.
    assert sorted(looked) == sorted(files), looked
    looked.clear()


class Lions(pydantic.BaseModel):
    """Number of lions in the secret."""

    lions: int


SECRET = Lions(lions=4711)


def openai():
    import openai

    class Look(pydantic.BaseModel):
        """Reads a file."""

        file: str

    client = openai.OpenAI(base_url=V1, api_key="any", max_retries=0)

    def results(message):
        calls = message.tool_calls
        assert len({call.id for call in calls}) == 2
        return [{"role": "tool", "tool_call_id": call.id, "content": read(call.function.parsed_arguments.file)} for call in calls]

    tools = [openai.pydantic_function_tool(Look, name="look")]
    for prompt, form in [(LOOK, openai.omit), (FORM, Lions)]:
        for is_streamed in [False, True]:
            fields = {"model": MODEL, "tools": tools, "response_format": form}
            messages = [{"role": "user", "content": prompt}]
            for turn in range(2):
                if is_streamed:
                    with client.chat.completions.stream(messages=messages, **fields) as stream:
                        choice = stream.get_final_completion().choices[0]
                else:
                    choice = client.chat.completions.parse(messages=messages, **fields).choices[0]
                if turn == 0:
                    assert choice.finish_reason == "tool_calls", choice
                    messages += [choice.message, *results(choice.message)]
            has_looked()
            assert choice.finish_reason == "stop", choice
            assert choice.message.content == READ if prompt == LOOK else choice.message.parsed == SECRET, choice
    for prompt, form in [(LOOK, openai.omit), (FORM, Lions)]:
        fields = {"model": MODEL, "tools": [tools[0]["function"] | {"type": "function"}]}
        history = [{"role": "user", "content": prompt}]
        with client.responses.stream(input=history, text_format=form, **fields) as stream:
            first = stream.get_final_response()
        calls = [item for item in first.output if item.type == "function_call"]
        history += first.output
        for call in calls:
            output = read(json.loads(call.arguments)["file"])
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
        has_looked()
        last = client.responses.parse(input=history, text_format=form, **fields)
        assert last.output_text == READ if prompt == LOOK else last.output_parsed == SECRET, last


def anthropic():
    import anthropic

    @anthropic.beta_tool
    def look(file: str) -> str:
        """Reads a file.

        Args:
            file: Name of the file.
        """
        return read(file)

    client = anthropic.Anthropic(base_url=BASE, api_key="any", max_retries=0)
    fields = {"model": MODEL, "max_tokens": 400, "tools": [look]}
    for prompt, form in [(LOOK, anthropic.omit), (FORM, Lions)]:
        messages = [{"role": "user", "content": prompt}]
        first, last = client.beta.messages.tool_runner(messages=messages, output_format=form, **fields)
        has_looked()
        kinds = [block.type for block in first.content]
        assert kinds == [*(["thinking", "text"] if prompt == LOOK else []), "tool_use", "tool_use"], first
        assert (first.stop_reason, last.stop_reason) == ("tool_use", "end_turn")
        assert last.content[-1].text == READ if prompt == LOOK else last.parsed_output == SECRET, last
        texts = []
        for stream in client.beta.messages.tool_runner(messages=messages, output_format=form, stream=True, **fields):
            texts.append("".join(event.text for event in stream if event.type == "text"))
        has_looked()
        assert texts == ([FIRST, READ] if prompt == LOOK else ["", last.content[-1].text]), texts


def litellm():
    import litellm

    parameters = {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]}
    tool = {"type": "function", "function": {"name": "look", "description": "Reads a file.", "parameters": parameters}}
    for name, base in [("openai", V1), ("hosted_vllm", V1), ("anthropic", BASE)]:
        fields = {"model": f"{name}/{MODEL}", "api_base": base, "api_key": "any", "num_retries": 0, "tools": [tool]}
        for is_streamed in [False, True]:
            messages = [{"role": "user", "content": LOOK}]

            def answer():
                got = litellm.completion(messages=messages, max_tokens=400, stream=is_streamed, **fields)
                return (litellm.stream_chunk_builder(list(got)) if is_streamed else got).choices[0]

            first = answer()
            assert first.finish_reason == "tool_calls" and first.message.content == FIRST, (name, first)
            messages.append(first.message.model_dump(exclude_none=True))
            for call in first.message.tool_calls:
                result = read(json.loads(call.function.arguments)["file"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            has_looked()
            last = answer()
            assert (last.finish_reason, last.message.content) == ("stop", READ), (name, last)


def langchain():
    from langchain.agents import create_agent
    from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    def look(file: str) -> str:
        """Reads a file."""
        return read(file)

    common = {"model": MODEL, "api_key": "any", "max_retries": 0, "max_tokens": 400}
    chats = [
        ChatOpenAI(base_url=V1, **common),
        ChatOpenAI(base_url=V1, use_responses_api=True, **common),
        ChatAnthropic(base_url=BASE, **common),
    ]

    def asked(prompt):
        return {"messages": [{"role": "user", "content": prompt}]}

    for chat in chats:
        agent = create_agent(chat, tools=[look])
        messages = agent.invoke(asked(LOOK))["messages"]
        has_looked()
        assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "ai"], messages
        assert messages[-1].text == READ, messages
        parts = [part.text for part, _ in agent.stream(asked(LOOK), stream_mode="messages") if part.type == "AIMessageChunk"]
        has_looked()
        assert "".join(parts) == FIRST + READ and len(parts) > 4, parts
        for strategy, files in [(ProviderStrategy(Lions), FILES), (ToolStrategy(Lions), FILES[:1])]:
            formed = create_agent(chat, tools=[look], response_format=strategy).invoke(asked(FORM))
            has_looked(files)
            assert formed["structured_response"] == SECRET, (chat, strategy, formed)


def pydantic_ai():
    import asyncio

    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIProvider(base_url=V1, api_key="any")
    claude = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=BASE, api_key="any"))
    models = [OpenAIChatModel(MODEL, provider=openai), OpenAIResponsesModel(MODEL, provider=openai), claude]

    def look(file: str) -> str:
        """Reads a file."""
        return read(file)

    async def result(agent):
        async with agent.run_stream_events(LOOK) as events:
            return [event async for event in events][-1].result

    settings = {"max_tokens": 400}
    for model in models:
        agent = Agent(model, tools=[look], model_settings=settings)
        assert agent.run_sync(LOOK).output == READ, model
        has_looked()
        assert asyncio.run(result(agent)).output == READ, model
        has_looked()
        # Of Claude's models, it knows those that take the schema of an answer.
        forms = [(ToolOutput(Lions), FILES[:1])] + ([(NativeOutput(Lions), FILES)] if model is not claude else [])
        for output, files in forms:
            agent = Agent(model, tools=[look], output_type=output, model_settings=settings)
            assert agent.run_sync(FORM).output == SECRET, (model, output)
            has_looked(files)


{part.__name__: part for part in [openai, anthropic, litellm, langchain, pydantic_ai]}[PART]()
print(PART, "ok")
