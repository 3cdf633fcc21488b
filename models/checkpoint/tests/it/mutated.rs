//! Files as whoever makes a checkpoint can write them: those of the fixtures, changed at random.

use serde_json::json;

use super::mutations::{files, read_all, run};
use super::targets;

#[test]
fn safetensors() {
    run("safetensors", &read_all(&files("model.safetensors")), (25, 8192), targets::safetensors::run);
}

#[test]
fn gguf() {
    run("gguf", &read_all(&files("model.gguf")), (60, 16_384), targets::gguf::run);
}

#[test]
fn tokenizers() {
    let added = json!([{ "id": 5, "content": "<s>", "special": true, "normalized": false, "single_word": false,
        "lstrip": false, "rstrip": false }]);
    let vocab = json!({ "a": 0, "b": 1, "ab": 2, "Ġ": 3, "c": 4 });
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let split = json!({ "type": "Split", "pattern": { "Regex": "\\p{L}+|\\s+" }, "behavior": "Isolated", "invert": false });
    let normalizer = json!({ "type": "Sequence", "normalizers": [{ "type": "NFC" },
        { "type": "Replace", "pattern": { "String": " " }, "content": "_" }] });
    let sources = [
        json!({ "version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
            "model": { "type": "BPE", "vocab": vocab, "merges": ["a b"] } }),
        json!({ "version": "1.0", "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": split,
            "model": { "type": "BPE", "vocab": vocab, "merges": [["a", "b"]], "byte_fallback": true, "unk_token": "c" } }),
        json!({ "version": "1.0", "added_tokens": [], "model": { "type": "Unigram", "unk_id": 0,
            "vocab": [["a", -1.0], ["b", -2.5], ["ab", -0.5]] } }),
    ];
    let sources = sources.map(|source| source.to_string().into_bytes());
    run("tokenizer.json", &sources, (300, usize::MAX), targets::tokenizer::run);
}

#[test]
fn chat_templates() {
    let sources = [
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>{% endif %}",
        "{%- set ns = namespace(n=0, text='') -%}{%- for m in messages %}{% set ns.n = ns.n + 1 %}\
         {% set ns.text = ns.text ~ m.content.split('a')[0] ~ loop.index %}{% endfor -%}{{ ns.text * 3 }}{{ ns.n }}",
        "{% macro tag(name, n=2) %}<{{ '%s-%02d' | format(name, n) }}>{% endmacro %}{{ tag('x') }}\
         {{ messages | map(attribute='content') | join(', ') | replace('a', 'bb') | indent(4) }}",
        "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}\
         {% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ tools | tojson(indent=2) }}{{ system }}\
         {% for m in rest if m.role in ['user', 'assistant'] %}{{ m | tojson }}{% endfor %}",
        "{% set x %}{{ bos_token }}{% filter upper %}{{ messages[-1].content }}{% endfilter %}{% endset %}{{ x ~ x }}\
         {% for i in range(50) %}{{ i * 2 }}{% if i > 40 %}{% break %}{% endif %}{% endfor %}",
    ];
    let sources = sources.map(|source| source.as_bytes().to_vec());
    run("chat templates", &sources, (150, usize::MAX), targets::template::run);
}
