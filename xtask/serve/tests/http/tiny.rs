//! The files of a tiny model with a tokenizer and a chat template.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// Texts of bytes with a token of their own: printable ASCII, line breaks, and characters of 2, 3 and 4 bytes.
const TEXTS: &str = "\né€😀";

/// Pairs of tokens that are a token.
const MERGES: [[&str; 2]; 20] = [
    ["t", "h"],
    ["e", "r"],
    ["o", "n"],
    ["a", "n"],
    ["i", "n"],
    ["th", "e"],
    ["Ġ", "the"],
    ["o", "u"],
    ["l", "l"],
    ["h", "e"],
    ["he", "ll"],
    ["hell", "o"],
    ["s", "t"],
    ["r", "e"],
    ["a", "t"],
    ["e", "s"],
    ["o", "r"],
    ["i", "s"],
    ["Ġ", "a"],
    ["Ġ", "is"],
];

/// Conversations as SmolLM2 writes them, and what tests look for of tools, documents and thoughts.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments.x }}]{% endfor %}\
<|im_end|>\n{% endfor %}\
{% if tools %}tools: {{ tools | tojson }}\n{% endif %}\
{% if documents %}documents: {{ documents | length }}\n{% endif %}\
{% if enable_thinking is defined and not enable_thinking %}no thoughts\n{% endif %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Ends an answer.
const END: &str = "<|im_end|>";

/// Writes the model, which is the one in folder `source` with another end token.
pub(crate) fn write(folder: &Path, source: &Path) {
    let write = |name: &str, value: &Value| fs::write(folder.join(name), value.to_string()).unwrap();
    fs::copy(source.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    config["eos_token_id"] = 127.into();
    write("config.json", &config);
    write("tokenizer.json", &tokenizer());
    write("tokenizer_config.json", &json!({ "eos_token": END, "chat_template": TEMPLATE }));
}

fn tokenizer() -> Value {
    let mut bytes: Vec<u8> = (b' '..=b'~').chain(TEXTS.bytes()).collect();
    bytes.sort_unstable();
    bytes.dedup();
    let mut tokens: Vec<String> = bytes.into_iter().map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(MERGES.map(|pair| pair.concat()));
    let control = ["<|endoftext|>", "<|im_start|>", END];
    assert_eq!(tokens.len() + control.len(), 128);
    let vocab: Value =
        (0..).zip(&tokens).map(|(id, token): (u32, _)| (token.clone(), Value::from(id))).collect();
    let added = (125..).zip(control).map(|(id, content)| added_token(id, content));
    json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": byte_level(),
        "decoder": byte_level(),
        "model": { "type": "BPE", "vocab": vocab, "merges": MERGES.map(|pair| pair.join(" ")) },
    })
}

/// A control token in a tokenizer's file.
pub(crate) fn added_token(id: usize, content: &str) -> Value {
    json!({ "id": id, "content": content, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false })
}

/// Bytes as characters, in a tokenizer's file.
pub(crate) fn byte_level() -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true })
}

/// The character that byte-level BPE writes for a byte.
pub(crate) fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|b| !printable(*b)).count();
    char::from_u32(0x100 + u32::try_from(before).unwrap()).unwrap()
}
