"""Calls a server with the clients that most programs in Python use: clients.py BASE_URL MODEL."""

import json
import sys

import anthropic
import openai

BASE, MODEL = sys.argv[1:]
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["x"],
    "additionalProperties": False,
}

chatgpt = openai.OpenAI(base_url=f"{BASE}/v1", api_key="any", max_retries=0)
claude = anthropic.Anthropic(base_url=BASE, api_key="any", max_retries=0)


def models():
    assert [model.id for model in chatgpt.models.list()] == [MODEL]
    assert chatgpt.models.retrieve(MODEL).id == MODEL


def chat():
    fields = {"model": MODEL, "messages": HELLO, "max_completion_tokens": 8, "temperature": 0}
    whole = chatgpt.chat.completions.create(logprobs=True, top_logprobs=2, **fields)
    choice = whole.choices[0]
    assert len(choice.logprobs.content) == whole.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    chunks = list(chatgpt.chat.completions.create(stream=True, stream_options={"include_usage": True}, **fields))
    *_, end, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == choice.message.content
    assert end.choices[0].finish_reason == choice.finish_reason
    assert usage.choices == [] and usage.usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    with chatgpt.chat.completions.stream(**fields) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
    assert "".join(deltas) == choice.message.content


def tools():
    tool = {"type": "function", "function": {"name": "double", "parameters": SCHEMA, "strict": True}}
    fields = {"model": MODEL, "tools": [tool], "tool_choice": "required", "max_completion_tokens": 100}
    first = chatgpt.chat.completions.create(messages=HELLO, **fields).choices[0]
    call = first.message.tool_calls[0]
    assert (first.finish_reason, call.function.name) == ("tool_calls", "double")
    result = {"role": "tool", "tool_call_id": call.id, "content": "4"}
    messages = [*HELLO, first.message.model_dump(exclude_none=True), result]
    chatgpt.chat.completions.create(messages=messages, **fields | {"tool_choice": "none", "max_completion_tokens": 4})
    with chatgpt.chat.completions.stream(messages=HELLO, **fields) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [event.name for event in done] == ["double"], done
    assert 1 <= json.loads(done[0].arguments)["x"] <= 9


def forms():
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    fields = {"model": MODEL, "messages": HELLO, "response_format": form, "max_completion_tokens": 60}
    assert '"x"' in chatgpt.chat.completions.create(**fields).choices[0].message.content


def completions():
    fields = {"model": MODEL, "max_tokens": 4, "temperature": 0}
    whole = chatgpt.completions.create(prompt=["the lion", "the hare"], **fields)
    assert [choice.index for choice in whole.choices] == [0, 1]
    stream = chatgpt.completions.create(prompt="the lion", stream=True, **fields)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def responses():
    fields = {"model": MODEL, "max_output_tokens": 8, "temperature": 0}
    whole = chatgpt.responses.create(input="hello", instructions="be brief", **fields)
    counted = chatgpt.responses.input_tokens.count(model=MODEL, input="hello", instructions="be brief")
    assert counted.input_tokens == whole.usage.input_tokens
    with chatgpt.responses.stream(input="hello", instructions="be brief", **fields) as stream:
        events = list(stream)
    assert events[-1].response.output_text == whole.output_text
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == whole.output_text
    # The answer is sent back as it came.
    history = [{"role": "user", "content": "hello"}, *(item.model_dump() for item in whole.output)]
    chatgpt.responses.create(input=[*history, {"role": "user", "content": "and?"}], **fields)
    tool = {"type": "function", "name": "double", "parameters": SCHEMA, "strict": True}
    fields |= {"tools": [tool], "max_output_tokens": 100}
    called = chatgpt.responses.create(input="hello", tool_choice="required", **fields)
    call = next(item for item in called.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
    history = [{"role": "user", "content": "hello"}, call.model_dump(), result]
    chatgpt.responses.create(input=history, **fields | {"max_output_tokens": 4})
    with chatgpt.responses.stream(input="hello", tool_choice="required", **fields) as stream:
        kinds = [event.type for event in stream]
    assert "response.function_call_arguments.done" in kinds, kinds


def embeddings():
    texts = ["the lion", "the hare"]
    # The client asks for base64, and returns numbers.
    both = chatgpt.embeddings.create(model=MODEL, input=texts)
    one = chatgpt.embeddings.create(model=MODEL, input=texts[1], encoding_format="float")
    assert [item.index for item in both.data] == [0, 1]
    assert both.usage.prompt_tokens == both.usage.total_tokens > one.usage.total_tokens > 0
    assert len(both.data[1].embedding) == len(one.data[0].embedding)
    assert all(abs(a - b) < 1e-5 for a, b in zip(both.data[1].embedding, one.data[0].embedding))


def errors():
    other = chatgpt.chat.completions.create(model="other", messages=HELLO, max_tokens=2)
    assert other.model == MODEL, "a server of one model answers for any name"
    try:
        chatgpt.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1)
        raise AssertionError("a temperature below zero was taken")
    except openai.BadRequestError as error:
        assert error.param == "temperature"
    try:
        claude.messages.create(model=MODEL, messages=[], max_tokens=4)
        raise AssertionError("no message was answered")
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error"


def messages():
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 8, "extra_body": {"temperature": 0}}
    whole = claude.messages.create(system="be brief", **fields)
    with claude.messages.stream(system="be brief", **fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = claude.messages.count_tokens(model=MODEL, messages=HELLO, system="be brief").input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    tool = {"name": "double", "description": "doubles x", "input_schema": SCHEMA}
    fields |= {"tools": [tool], "max_tokens": 100}
    called = claude.messages.create(tool_choice={"type": "any"}, **fields)
    assert called.stop_reason == "tool_use"
    use = next(block for block in called.content if block.type == "tool_use")
    assert 1 <= use.input["x"] <= 9
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "4"}
    history = [*HELLO, {"role": "assistant", "content": [block.model_dump() for block in called.content]}]
    claude.messages.create(**fields | {"messages": [*history, {"role": "user", "content": [result]}], "max_tokens": 4})
    with claude.messages.stream(tool_choice={"type": "tool", "name": "double"}, **fields) as stream:
        assert stream.get_final_message().stop_reason == "tool_use"


for part in [models, chat, tools, forms, completions, responses, embeddings, errors, messages]:
    part()
    print(part.__name__, "ok")
