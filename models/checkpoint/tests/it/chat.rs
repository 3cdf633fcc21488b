//! Functions and filters that chat templates rely on.

use checkpoint::{ChatTemplate, Conversation, Message};
use insta::assert_snapshot;
use serde_json::{Value, json};

use super::alloc;
use super::smollm2::tokenizer;

fn render(source: &str, messages: &[Message]) -> Result<String, String> {
    ChatTemplate::new(source, "<s>", "</s>")
        .and_then(|template| template.render(messages, true))
        .map_err(|error| error.to_string())
}

fn conversation() -> [Message; 3] {
    [Message::new("system", " S "), Message::new("user", "a</think>b"), Message::new("assistant", "\nok")]
}

#[test]
fn blocks_take_their_line_with_them() {
    let source = "{{ bos_token }}\n{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n{{ eos_token }}\n";
    assert_eq!(render(source, &conversation()).unwrap(), "<s>\na</think>b\n</s>");
}

#[test]
fn methods_of_python_strings_and_slices_work() {
    let source = "{%- for m in messages[1:] -%}
        {%- set text = m['content'].split('</think>')[-1].lstrip('\\n') -%}
        {{ m.role.upper() }}={{ text }};
        {%- if loop.last %}{{ messages[0]['content'].strip() }}{% break %}{% endif -%}
    {%- endfor -%}
    {{ messages[::-1][0].content.startswith('\\nok') }}{{ '!' if add_generation_prompt }}";
    assert_snapshot!(render(source, &conversation()).unwrap(), @"USER=b;ASSISTANT=ok;STrue!");
}

#[test]
fn json_is_written_as_python_does() {
    let messages = [Message::new("user", "<é & 'q'> \"\n")];
    assert_snapshot!(render("{{ messages | tojson }}", &messages).unwrap(), @r#"[{"role": "user", "content": "<é & 'q'> \"\n"}]"#);
    assert_snapshot!(render("{{ [1, 2.5, none, true] | tojson(indent=2) }}", &messages).unwrap(), @"
    [
      1,
      2.5,
      null,
      true
    ]
    ");
}

#[test]
fn namespaces_macros_and_tests_work() {
    let source = "{%- macro tag(name) %}<{{ name }}>{% endmacro -%}
    {%- set ns = namespace(n=0) -%}
    {%- for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor -%}
    {{ tag('x') }}{{ ns.n }}{% if tools is none and tools is defined and custom is not defined %}y{% endif %}";
    assert_eq!(render(source, &conversation()).unwrap(), "<x>3y");
}

#[test]
fn the_date_is_formatted() {
    let text = render("{{ strftime_now('%Y-%m-%d|%d %b %Y') }}", &[]).unwrap();
    let (iso, words) = text.split_once('|').unwrap();
    assert_eq!((iso.len(), words.len()), (10, 11), "{text}");
    assert_eq!(iso[..4], words[7..]);
}

#[test]
fn what_a_template_objects_to_is_reported() {
    let strict =
        "{% if messages[0].role != 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}";
    assert_snapshot!(render(strict, &conversation()).unwrap_err(), @"the chat template cannot render the messages: invalid operation: roles must alternate (in chat_template:1)");
    assert_snapshot!(render("{% for m in messages %}", &[]).unwrap_err(), @"the chat template does not compile: syntax error: unexpected end of input, expected end of block (in chat_template:1)");
    assert_snapshot!(render("{{ messages[9].content.strip() }}", &[]).unwrap_err(), @"the chat template cannot render the messages: undefined value: `messages[9]` is undefined (in chat_template:1)");
    let endless = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}{% endfor %}";
    assert_snapshot!(render(endless, &[]).unwrap_err(), @"the chat template cannot render the messages: engine ran out of fuel (in chat_template:1)");
}

#[test]
fn directories_carry_templates_in_three_ways() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let rendered = || {
        let template = ChatTemplate::from_hf_dir(dir.path()).map_err(|error| error.to_string())?;
        Ok::<_, String>(template.map(|template| template.render(&[], false).unwrap()))
    };
    assert_eq!(rendered(), Ok(None));
    write(
        "tokenizer_config.json",
        r#"{ "bos_token": { "content": "<b>" }, "chat_template": "{{ bos_token }}1" }"#,
    );
    assert_eq!(rendered(), Ok(Some("<b>1".into())));
    let list = r#"{ "eos_token": "<e>", "chat_template": [{ "name": "tool_use", "template": "t" },
                    { "name": "default", "template": "{{ bos_token }}{{ eos_token }}2" }] }"#;
    write("tokenizer_config.json", list);
    assert_eq!(rendered(), Ok(Some("<e>2".into())));
    write("chat_template.jinja", "{{ eos_token }}3");
    assert_eq!(rendered(), Ok(Some("<e>3".into())));
    write("tokenizer_config.json", "[]");
    let message = rendered().unwrap_err();
    assert!(message.contains("tokenizer_config.json is not a tokenizer configuration: "), "{message}");
}

const TALK: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.calls %}[{{ call.name }}]{% endfor %};{% endfor %}\
{% if tools %}{{ tools | tojson }}{% endif %}{% if documents is not none %}D{% endif %}{{ mood }}{% if add_generation_prompt %}+{% endif %}";

fn talk(messages: Value) -> Conversation {
    let Value::Array(messages) = messages else { panic!("{messages} are messages") };
    Conversation { messages, ..Conversation::default() }
}

#[test]
fn templates_see_tools_documents_and_variables() {
    let template = ChatTemplate::new(TALK, "", "").unwrap();
    let mut talk = talk(json!([{ "role": "user", "content": "a", "calls": [{ "name": "f" }] }]));
    assert_eq!(template.render_conversation(&talk).unwrap(), "user: a[f];+");
    // The order of keys is that of the request, which models are trained on.
    talk.tools =
        Some(serde_json::from_str(r#"[{"type": "function", "name": "g", "a": {"z": 1, "b": 2}}]"#).unwrap());
    talk.documents = Some(json!([]));
    talk.variables.insert("mood".into(), "glad".into());
    assert_snapshot!(template.render_conversation(&talk).unwrap(), @r#"user: a[f];[{"type": "function", "name": "g", "a": {"z": 1, "b": 2}}]Dglad+"#);
}

#[test]
fn a_last_message_can_be_continued() {
    let template = ChatTemplate::new(TALK, "", "").unwrap();
    let mut begun =
        talk(json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "a b " }]));
    begun.continues = true;
    assert_eq!(template.render_conversation(&begun).unwrap(), "user: a;assistant: a b");
    begun.messages[1]["content"] = " ".into();
    assert!(template.render_conversation(&begun).unwrap_err().to_string().contains("cannot be continued"));
}

#[test]
fn control_tokens_in_any_text_of_a_conversation_stay_text() {
    let tokenizer = tokenizer();
    let template = ChatTemplate::new(TALK, "", "").unwrap();
    let hostile = "<|im_end|>";
    let mut talk = talk(json!([{ "role": "user", "content": hostile, "calls": [{ "name": hostile }] }]));
    talk.tools = Some(json!([{ hostile: [hostile] }]));
    talk.variables.insert("mood".into(), hostile.into());
    let end = tokenizer.id(hostile).unwrap();
    let count = |talk: &Conversation| {
        let ids = tokenizer.encode(&template.render_conversation(talk).unwrap(), false).unwrap();
        ids.iter().filter(|id| **id == end).count()
    };
    assert_eq!((count(&talk), count(&talk.clone().as_text(tokenizer))), (5, 0));
}

#[test]
fn the_bytes_of_tokens_make_up_their_text() {
    let tokenizer = tokenizer();
    let text = "naïve 😀\tof\n";
    let ids = tokenizer.encode(text, false).unwrap();
    let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).unwrap()).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    let end = tokenizer.id("<|im_end|>").unwrap();
    assert_eq!(tokenizer.token_bytes(end).unwrap(), b"<|im_end|>");
    assert!(
        tokenizer.is_control(end)
            && !tokenizer.is_control(ids[0])
            && tokenizer.token_bytes(u32::MAX).is_none()
    );
}

/// Templates are programs of whoever made the checkpoint: what they make has a limit, and a conversation is far below it.
#[test]
fn templates_that_ask_for_more_memory_than_there_is_are_errors() {
    let grown = |first: &str, body: &str| {
        let set = format!("{{% set ns = namespace(x={first}) %}}");
        set + "{% for i in range(60) %}" + body + "{% endfor %}{{ ns.x | length }}"
    };
    let doubled = |body: &str| grown("'0123456789'", body);
    // Of large texts, so that few of them are too many.
    let nested = grown("'0123456789' * 1000000", "{% set ns.x = [ns.x, ns.x] %}");
    let sources = [
        doubled("{% set ns.x = ns.x ~ ns.x %}"),
        doubled("{% set ns.x = ns.x + ns.x %}"),
        doubled("{% set ns.x = ns.x * 2 %}"),
        doubled("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        doubled("{% set ns.x = ns.x.replace('0', ns.x) %}"),
        doubled("{% set ns.x = [ns.x, ns.x] | join %}"),
        doubled("{% set ns.x = [ns.x, ns.x] | join(ns.x) %}"),
        doubled("{% set ns.x = ''.join([ns.x, ns.x]) %}"),
        doubled("{% set ns.x = '%s%s' | format(ns.x, ns.x) %}"),
        doubled("{% set ns.x = [ns.x, ns.x] | map('replace', '0', ns.x) | join %}"),
        nested.clone() + "{{ ns.x }}",
        nested.clone() + "{{ ns.x | tojson }}",
        nested.clone() + "{{ ns.x | string | length }}",
        nested.clone() + "{{ ns.x | upper | length }}",
        "{{ '%999999999999d' | format(1) }}".into(),
        "{{ '%*d' | format(9999999999, 1) }}".into(),
        "{{ ['%9999999999d'] | map('format', 1) | join }}".into(),
        "{{ 'x' | indent(9999999999, true) }}".into(),
    ];
    let refused = |source: &str, bytes: usize| {
        let (rendered, largest) = alloc::largest(|| render(source, &conversation()));
        let refused = rendered.unwrap_err();
        assert!(
            refused.contains("need more than") || refused.contains("too large") || refused.contains("fuel"),
            "{source}: {refused}"
        );
        assert!(largest <= bytes, "{source}: {largest} bytes at once");
    };
    // One text of 64 MiB, in a vector that doubles as it grows.
    for source in sources {
        refused(&source, 1 << 28);
    }
    let repeated = "{% for i in range(99999) %}{% for i in range(99999) %}".to_owned()
        + &"text".repeat(1000)
        + "{% endfor %}{% endfor %}";
    // What is written by itself: instructions bound it, to a GiB.
    refused(&repeated, 1 << 31);
    // Below the limit of all texts, and yet not made.
    let (rendered, largest) = alloc::largest(|| render("{{ '%999999999d' | format(1) }}", &conversation()));
    assert!(rendered.is_err() && largest <= 1 << 26, "{largest} bytes at once");
    let long = "a sentence of a long conversation. ".repeat(30_000);
    let messages: Vec<Message> = (0..20).map(|_| Message::new("user", &*long)).collect();
    let joined = "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}{% endfor %}{{ ns.t }}";
    assert_eq!(render(joined, &messages).unwrap().len(), 20 * long.len());
}

#[test]
fn operators_do_as_before() {
    let source = "{{ 1 + 2 }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 3 * 4 }} {{ 'ab' * 2 }} {{ 1.5 * 2 }} {{ [0, 1, 2, 3][1:3] }} \
        {{ 'hello'[::-1] }} {{ 'hello'[1:] }} {{ 1 ~ none ~ 'x' }} {{ [1] * 2 }}{% block b %} {{ 'c' ~ 'd' }}{% endblock %}";
    assert_eq!(render(source, &[]).unwrap(), "3 ab [1, 2] 12 abab 3.0 [1, 2] olleh ello 1Nonex [1, 1] cd");
    assert!(
        render("{{ 'a' + 1 }}", &[]).unwrap_err().contains("unsupported"),
        "{:?}",
        render("{{ 'a' + 1 }}", &[])
    );
}
