//! Files as whoever makes a checkpoint can write them: those of the fixtures, changed at random. Every reader ends with an error
//! or with something that can be used, and asks for no more memory than the file has reason for.
//!
//! `PAGODA_MUTATIONS` sets how many changed files each one becomes; the seed is fixed, so that a failure repeats itself.

use std::fs;
use std::path::PathBuf;

use models::{ChatTemplate, Conversation, DecoderConfig, Gguf, Safetensors, Tokenizer, WeightSource as _};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::hostile::use_sizes;
use super::{alloc, fixture};

/// Bytes of one allocation that no fixture has reason for: they are smaller than 4 MiB.
const LARGE: usize = 64 << 20;

/// Numbers at which sizes and offsets overflow.
const ODD: [u64; 8] = [0, 1, 127, 1 << 31, u32::MAX as u64, 1 << 62, i64::MAX as u64, u64::MAX];

/// Texts that mean something to one of the readers.
const TEXTS: [&str; 16] = [
    "null",
    "-1",
    "1e999",
    "18446744073709551616",
    "[",
    "{",
    "\"\"",
    "\\ud800",
    "{% for x in y %}",
    "{{ x * 99999999 }}",
    "| format(1)",
    "%999999999d",
    "{% endfor %}",
    "[[[[[[[[",
    "F32",
    "\u{0}",
];

fn rounds(default: u64) -> u64 {
    std::env::var("PAGODA_MUTATIONS").map_or(default, |text| text.parse().expect("a whole number"))
}

/// Changes up to four places within the first `reach` bytes.
fn mutate(rng: &mut StdRng, bytes: &mut Vec<u8>, reach: usize) {
    for _ in 0..rng.random_range(1..5) {
        let len = bytes.len().min(reach);
        if len < 16 {
            return;
        }
        let at = rng.random_range(0..len - 8);
        let other = rng.random_range(0..len - 8);
        let run = rng.random_range(1..=(len - at.max(other)).min(64));
        match rng.random_range(0..8) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8u32),
            1 => bytes[at] = rng.random(),
            2 => bytes[at..at + 8].copy_from_slice(&ODD[rng.random_range(0..ODD.len())].to_le_bytes()),
            3 => bytes.truncate(at),
            4 => bytes.copy_within(other..other + run, at),
            5 => drop(bytes.drain(at..at + run)),
            6 => {
                let text = TEXTS[rng.random_range(0..TEXTS.len())].bytes();
                drop(bytes.splice(at..at, text));
            }
            _ => {
                let digit = rng.random_range(b'0'..=b'9');
                let found = bytes[at..len].iter().position(u8::is_ascii_digit);
                found.into_iter().for_each(|digits| bytes[at + digits] = digit);
            }
        }
    }
}

/// Fixtures that have a file of this name.
fn files(name: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path().join(name));
    let mut found: Vec<PathBuf> = all.filter(|path| path.is_file()).collect();
    found.sort();
    assert!(found.len() > 5, "{name}: {} fixtures", found.len());
    found
}

/// Gives changed copies of `sources` to `read`, which says whether it took them.
fn run(target: &str, sources: &[Vec<u8>], (default, reach): (u64, usize), read: impl Fn(Vec<u8>) -> bool) {
    let (mut taken, mut refused) = (0, 0);
    for (index, source) in (0..).zip(sources) {
        for round in 0..rounds(default) {
            let mut rng = StdRng::seed_from_u64(index << 32 | round);
            let mut bytes = source.clone();
            mutate(&mut rng, &mut bytes, reach);
            let size = bytes.len();
            let (good, largest) = alloc::largest(|| read(bytes));
            assert!(largest < LARGE, "{target} {index}, round {round}: {largest} bytes for a file of {size}");
            *if good { &mut taken } else { &mut refused } += 1;
        }
    }
    eprintln!("{target}: {taken} changed files were taken, {refused} refused");
    assert!(refused > 0, "{target}: no change did anything");
}

fn read_all(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn safetensors() {
    let sources = read_all(&files("model.safetensors"));
    run("safetensors", &sources, (25, 8192), |bytes| {
        let Ok(file) = Safetensors::from_bytes(bytes) else { return false };
        for name in file.names() {
            if let Ok(Some(tensor)) = file.get(name) {
                assert_eq!(tensor.dtype.bytes_for(tensor.elems()), Some(tensor.data.len()));
            }
        }
        true
    });
}

#[test]
fn gguf() {
    let sources = read_all(&files("model.gguf"));
    run("gguf", &sources, (60, 16_384), |bytes| {
        let Ok(file) = Gguf::from_bytes(bytes) else { return false };
        for tensor in file.tensors() {
            let _ = file.get(&tensor.name);
        }
        let tokenizer = Tokenizer::from_gguf(&file);
        let _ = tokenizer.map(|tokenizer| tokenizer.encode("a text", true));
        let _ = ChatTemplate::from_gguf(&file);
        DecoderConfig::from_gguf(&file).inspect(use_sizes).is_ok()
    });
}

#[test]
fn configurations() {
    let sources = read_all(&files("config.json"));
    run("config.json", &sources, (150, usize::MAX), |bytes| {
        let text = String::from_utf8_lossy(&bytes);
        DecoderConfig::from_hf_json(&text, None).inspect(use_sizes).is_ok()
    });
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    run("tokenizer.json", &sources, (300, usize::MAX), |bytes| {
        fs::write(&path, bytes).unwrap();
        let Ok(tokenizer) = Tokenizer::from_file(&path) else { return false };
        if let Ok(ids) = tokenizer.encode("ab c<s> \u{1f600}", true) {
            let _ = tokenizer.decode(&ids, false);
        }
        true
    });
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
    let talk = Conversation {
        messages: vec![
            json!({ "role": "system", "content": "be" }),
            json!({ "role": "user", "content": "a text" }),
            json!({ "role": "assistant", "content": "an answer" }),
        ],
        ..Conversation::default()
    };
    let sources = sources.map(|source| source.as_bytes().to_vec());
    run("chat templates", &sources, (150, usize::MAX), |bytes| {
        let Ok(template) = ChatTemplate::new(&String::from_utf8_lossy(&bytes), "<s>", "</s>") else {
            return false;
        };
        template.render_conversation(&talk).is_ok()
    });
}
