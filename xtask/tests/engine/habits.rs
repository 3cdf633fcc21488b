//! `generate` as people are used to it: prompts from everywhere, conversations, penalties, schemas; with a tiny model that has a
//! tokenizer of ASCII and a chat template.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{fixture, ids, ids_file, refused, run, text, xtask};

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}\
{% if enable_thinking is defined and not enable_thinking %}no thoughts {% endif %}\
{% if effort is defined %}effort {{ effort + 1 }} {% endif %}<|im_start|>assistant: ";

/// Id of `<|im_end|>`: behind 96 letters and two other control tokens.
const END: u32 = 98;

pub(crate) static MODEL: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("tiny-llama");
    let write = |name: &str, value: &Value| fs::write(folder.path().join(name), value.to_string()).unwrap();
    fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    config["eos_token_id"] = END.into();
    write("config.json", &config);
    // Byte-level BPE writes a space as Ġ.
    let letters = (b'!'..=b'~').map(char::from).chain(['Ġ', 'Ċ']);
    let vocab: Value =
        (0..).zip(letters).map(|(id, c): (u32, char)| (c.to_string(), Value::from(id))).collect();
    let added = |(id, content): (u32, &str)| {
        json!({ "id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false })
    };
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true });
    let added: Vec<Value> =
        (END - 2..).zip(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]).map(added).collect();
    write(
        "tokenizer.json",
        &json!({
            "version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        }),
    );
    write("tokenizer_config.json", &json!({ "eos_token": "<|im_end|>", "chat_template": TEMPLATE }));
    folder
});

/// `generate --json` of the model, with one token unless `args` say more.
fn generate(args: &[&str]) -> Command {
    let mut command = xtask("generate");
    command.arg("--model").arg(MODEL.path()).args(args);
    if !args.contains(&"--max-tokens") {
        command.args(["--max-tokens", "1"]);
    }
    command
}

/// Ids of the prompt that the arguments make.
fn prompt(args: &[&str]) -> Vec<u32> {
    ids(&run(&mut generate(args))[0]["prompt_ids"])
}

/// Ids of a text as it is rendered.
fn rendered(text: &str) -> Vec<u32> {
    prompt(&["--raw", "--prompt", text])
}

#[test]
fn prompts_come_from_arguments_files_standard_input_and_conversations() {
    let plain = rendered("<|im_start|>user: Hi<|im_end|><|im_start|>assistant: ");
    assert_eq!(prompt(&["Hi"]), plain);
    assert_eq!(prompt(&["--prompt", "Hi"]), plain);
    let mut command = generate(&["-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"Hi").unwrap();
    let output = child.wait_with_output().unwrap();
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(ids(&line["prompt_ids"]), plain);

    let told = rendered(
        "<|im_start|>system: Be brief<|im_end|><|im_start|>user: Hi<|im_end|><|im_start|>assistant: ",
    );
    assert_eq!(prompt(&["--system", "Be brief", "Hi"]), told);
    let file = tempfile::NamedTempFile::new().unwrap();
    let messages = json!([{ "role": "system", "content": "Be brief" }, { "role": "user", "content": "Hi" }]);
    fs::write(file.path(), messages.to_string()).unwrap();
    assert_eq!(prompt(&["--messages", file.path().to_str().unwrap()]), told);
}

/// A pipe whose source has failed is no question, and bytes are none either.
#[test]
fn prompts_that_are_none_are_refused() {
    let told = refused(&mut generate(&[""]), 1);
    assert!(told.contains("prompt 0: the prompt is empty"), "{told}");
    let told = refused(&mut generate(&["--prompt", "Hi", "--prompt", ""]), 1);
    assert!(told.contains("prompt 1: the prompt is empty"), "{told}");
    let piped = |bytes: &[u8], why: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        let mut command = generate(&["-"]);
        let told = refused(command.stdin(fs::File::open(file.path()).unwrap()), 1);
        assert!(told.contains(why), "{told}");
    };
    piped(b"", "the prompt is empty");
    piped(&[0xff, 0xfe, 0], "standard input: not UTF-8: byte 0xff at offset 0");
}

#[test]
fn templates_have_arguments() {
    let quiet = rendered("<|im_start|>user: Hi<|im_end|>no thoughts effort 4 <|im_start|>assistant: ");
    assert_eq!(prompt(&["--thinking", "off", "--template-arg", "effort=3", "Hi"]), quiet);
    let said = refused(&mut generate(&["--raw", "--thinking", "off", "Hi"]), 2);
    assert!(said.contains("cannot be used with"), "{said}");
}

/// Control tokens in the texts of users stay text, unless the prompt is raw.
#[test]
fn users_do_not_spell_control_tokens() {
    let ids = prompt(&["a<|im_end|>b"]);
    assert_eq!(ids.iter().filter(|id| **id == END).count(), 1, "{ids:?}");
    assert!(rendered("a<|im_end|>b").contains(&END));
    let ids = prompt(&["--system", "<|im_end|>", "Hi"]);
    assert_eq!(ids.iter().filter(|id| **id == END).count(), 2, "{ids:?}");
}

#[test]
fn outputs_are_instances_of_a_schema() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 7, "maximum": 9 } },
        "required": ["n"], "additionalProperties": false });
    fs::write(file.path(), schema.to_string()).unwrap();
    let schema = file.path().to_str().unwrap();
    let lines = run(&mut generate(&[
        "--json-schema",
        schema,
        "--max-tokens",
        "200",
        "--n",
        "2",
        "--temperature",
        "1",
        "Hi",
    ]));
    assert_eq!(lines.len(), 2);
    for line in lines {
        let value: Value = serde_json::from_str(line["text"].as_str().unwrap()).unwrap();
        assert!((7..=9).contains(&value["n"].as_i64().unwrap()), "{value}");
    }
    fs::write(file.path(), "{\"type\": 3}").unwrap();
    let said = refused(&mut generate(&["--json-schema", schema, "Hi"]), 1);
    assert!(said.contains(schema), "{said}");
}

#[test]
fn log_probabilities_are_of_each_token() {
    let line = &run(&mut generate(&["--logprobs", "3", "--max-tokens", "4", "--min-tokens", "4", "Hi"]))[0];
    let output = ids(&line["output_ids"]);
    let log_probs = line["log_probs"].as_array().unwrap();
    assert_eq!(log_probs.len(), output.len());
    for (at, id) in log_probs.iter().zip(&output) {
        // The likeliest token was drawn.
        assert_eq!(
            (at["id"].as_u64(), at["top_ids"][0].as_u64()),
            (Some(u64::from(*id)), Some(u64::from(*id)))
        );
        assert_eq!(at["log_prob"], at["top_logprobs"][0]);
        assert!(at["log_prob"].as_f64().unwrap() < 0.0 && at["top_ids"].as_array().unwrap().len() == 3);
    }
}

/// A token that is forced to repeat is let go by the penalties, and DRY lets no run of three tokens come twice.
#[test]
fn penalties_and_biases_act() {
    let output = |args: &[&str]| {
        let all = [&["--max-tokens", "24", "--min-tokens", "24"], args, &["Hi"]].concat();
        ids(&run(&mut generate(&all))[0]["output_ids"])
    };
    let favoured = output(&["--logit-bias", "40=50"]);
    assert_eq!(favoured, [40; 24]);
    let penalised = output(&["--logit-bias", "40=50", "--frequency-penalty", "20"]);
    assert!((2..6).contains(&penalised.iter().filter(|id| **id == 40).count()), "{penalised:?}");
    let dry = output(&["--logit-bias", "40=50", "--dry-multiplier", "100", "--dry-breaker", "\n"]);
    let runs = dry.windows(3).filter(|run| *run == [40; 3]).count();
    assert!(runs <= 1 && dry.contains(&40), "{dry:?}");
    let said = refused(&mut generate(&["--repetition-penalty", "0", "Hi"]), 2);
    assert!(said.contains("above 0"), "{said}");
}

/// Ids are printed where there is no tokenizer; notes and times go away with `--quiet`, and more is told with `--verbose`.
#[test]
fn what_is_printed_suits_the_model_and_the_flags() {
    let file = ids_file(&[5, 6, 7]);
    let print = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(["generate", "--max-tokens", "3", "--ids-file"]).arg(file.path());
        let output = command.arg("--model").arg(fixture("tiny-llama")).args(flags).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
    };
    let (ids, said) = print(&[]);
    let printed: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(printed.len(), 3, "{ids}");
    assert!(said.contains("3 prompt tokens") && said.contains("device:"), "{said}");
    let (same, nothing) = print(&["--quiet"]);
    assert_eq!((same, nothing.as_str()), (ids.clone(), ""));
    let (same, more) = print(&["--verbose"]);
    assert_eq!(same, ids);
    assert!(more.contains("family llama, 3 layers"), "{more}");
}

#[test]
fn weights_are_quantized_at_load() {
    let file = ids_file(&[5, 6, 7, 8]);
    let score = |flags: &[&str]| {
        let mut command = xtask("score");
        command.arg("--model").arg(fixture("tiny-llama")).args(flags).arg("--ids-file").arg(file.path());
        run(&mut command)[0]["mean_nll"].as_f64().unwrap()
    };
    let (plain, eight, four) = (score(&[]), score(&["--quantize", "q8_0"]), score(&["--quantize", "q4_0"]));
    // Far from what the model expects, so that 8 bits show.
    let [eight, four] = [eight, four].map(|nll| (plain - nll).abs() / plain);
    assert!(0.0 < eight && eight < 0.05 && eight < four && four < 0.3, "{plain} {eight} {four}");
    let said = refused(xtask("score").args(["--ids-file", "f", "--quantize", "q9"]), 2);
    assert!(said.contains("q8_0 q6_k"), "{said}");
}
