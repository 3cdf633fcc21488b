//! Gemma 3 270M, which is fetched by its name, against transformers. Its terms apply and a CPU takes minutes:
//! `PAGODA_LONG_TESTS=1` runs these tests.

use std::sync::OnceLock;

use models::Tokenizer;
use pagoda::fetch::{GEMMA_3_270M, ModelCache};
use serde::Deserialize;
use serde_json::Value;

use crate::{ids, ids_file, is_long, run, xtask};

#[derive(Deserialize)]
struct Golden {
    greedy: Vec<Greedy>,
    tokenizer: Vec<Coded>,
    text_ids: Vec<u32>,
    text: Vec<Text>,
    passkey: Vec<Passkey>,
    prompt_parts: Parts,
}

#[derive(Deserialize)]
struct Greedy {
    prompt: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    top1_margins: Vec<f32>,
}

#[derive(Deserialize)]
struct Coded {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

#[derive(Deserialize)]
struct Text {
    tokens: usize,
    mean_nll: f64,
    last_top10_ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Passkey {
    key: String,
    before: usize,
    after: usize,
    prompt_tokens: usize,
    greedy_ids: Vec<u32>,
    answer: String,
    top1_margins: Vec<f32>,
}

#[derive(Deserialize)]
struct Parts {
    intro: String,
    filler: String,
    key: String,
    question: String,
}

/// A gap between the two largest logits that rounding keys and values to f16 does not close.
const SURE: f32 = 0.02;

fn golden() -> &'static Golden {
    static GOLDEN: OnceLock<Golden> = OnceLock::new();
    GOLDEN.get_or_init(|| serde_json::from_str(include_str!("../fixtures/gemma3.json")).unwrap())
}

fn tokenizer() -> Tokenizer {
    let path = ModelCache::user().unwrap().fetch(&GEMMA_3_270M, |_| {}).unwrap();
    models::Checkpoint::open(path).unwrap().tokenizer().unwrap().unwrap()
}

/// Output of `COMMAND --model gemma-3-270m FLAGS` for these prompts.
fn gemma(command: &str, prompts: &[Vec<u32>], flags: &[&str]) -> Vec<Value> {
    let file = ids_file(&prompts);
    let mut command = xtask(command);
    run(command.args(["--model", "gemma-3-270m", "--ids-file"]).arg(file.path()).args(flags))
}

/// Tokens before the first that the reference is not sure of.
fn sure(margins: &[f32]) -> usize {
    margins.iter().position(|margin| *margin < SURE).unwrap_or(margins.len())
}

impl Passkey {
    fn prompt(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let Parts { intro, filler, key, question } = &golden().prompt_parts;
        let key = key.replace("{key}", &self.key);
        let text =
            [intro.clone(), filler.repeat(self.before), key, filler.repeat(self.after), question.clone()];
        let ids = tokenizer.encode(&text.concat(), true).unwrap();
        assert_eq!(ids.len(), self.prompt_tokens);
        ids
    }
}

#[test]
fn tokens_are_those_of_transformers() {
    if !is_long() {
        return;
    }
    let tokenizer = tokenizer();
    for Coded { text, ids, decoded } in &golden().tokenizer {
        assert_eq!(&tokenizer.encode(text, false).unwrap(), ids, "{text:?}");
        assert_eq!(&tokenizer.decode(ids, false).unwrap(), decoded);
    }
    for Greedy { prompt, prompt_ids, .. } in &golden().greedy {
        assert_eq!(&tokenizer.encode(prompt, true).unwrap(), prompt_ids, "{prompt:?}");
    }
}

#[test]
fn texts_go_on_as_with_transformers() {
    if !is_long() {
        return;
    }
    let prompts: Vec<Vec<u32>> = golden().greedy.iter().map(|case| case.prompt_ids.clone()).collect();
    let lines = gemma("generate", &prompts, &["--raw", "--max-tokens", "32"]);
    for (case, line) in golden().greedy.iter().zip(&lines) {
        let sure = sure(&case.top1_margins);
        assert_eq!(ids(&line["output_ids"])[..sure], case.ids[..sure], "{:?}", case.prompt);
        if sure == case.ids.len() {
            assert_eq!(line["text"], case.text);
        }
    }
}

/// Over one window, over several, and over both sizes of chunks.
#[test]
fn a_text_is_as_likely_as_with_transformers() {
    if !is_long() {
        return;
    }
    for Text { tokens, mean_nll, last_top10_ids } in &golden().text {
        let scored = gemma("score", &[golden().text_ids[..*tokens].to_vec()], &["--top", "10"]).remove(0);
        let got = scored["mean_nll"].as_f64().unwrap();
        assert!((got - mean_nll).abs() <= 0.003, "{tokens} tokens: {got}, transformers have {mean_nll}");
        let top = ids(&scored["top_ids"]);
        assert_eq!(top[0], last_top10_ids[0], "{tokens} tokens");
        let common = top.iter().filter(|id| last_top10_ids.contains(id)).count();
        assert!(common >= 9, "{tokens} tokens: {top:?} has {common} of {last_top10_ids:?}");
    }
}

#[test]
fn keys_are_found_where_transformers_find_them() {
    if !is_long() {
        return;
    }
    let tokenizer = tokenizer();
    for case in &golden().passkey {
        let flags = ["--raw", "--max-tokens", "8"];
        let line = gemma("generate", &[case.prompt(&tokenizer)], &flags).remove(0);
        let sure = sure(&case.top1_margins);
        assert_eq!(ids(&line["output_ids"])[..sure], case.greedy_ids[..sure], "{}", case.key);
        if sure == case.greedy_ids.len() {
            assert_eq!(line["text"], case.answer);
        }
    }
}

/// Layers that see everything keep all blocks, those with windows what a window of 512 and a chunk reach over.
#[test]
fn windows_give_their_blocks_back() {
    const TOKENS: usize = 30_000;
    if !is_long() {
        return;
    }
    let tokens = golden().text_ids.iter().copied().cycle().take(TOKENS).collect();
    let line = gemma("generate", &[tokens], &["--raw", "--max-tokens", "1", "--chunk", "512"]).remove(0);
    let blocks = |group: &str| line["kv"][group]["blocks"].as_u64().unwrap();
    assert_eq!(blocks("full"), 30_000_u64.div_ceil(16), "{}", line["kv"]);
    assert!(blocks("window_512") <= (511_u64 + 512).div_ceil(16) + 1, "{}", line["kv"]);
}

/// The second time, a prompt's windows are found at its end, and everything else from its beginning.
#[test]
fn prompts_are_found_again() {
    if !is_long() {
        return;
    }
    let prompt = golden().text_ids[..2048].to_vec();
    let flags = ["--raw", "--max-tokens", "4", "--chunk", "512"];
    let lines = gemma("generate", &[prompt.clone(), prompt], &flags);
    // What the first had computed when the second came.
    assert!(lines[1]["cached_tokens"].as_u64().unwrap() >= 512, "{}", lines[1]["cached_tokens"]);
    assert_eq!(lines[1]["output_ids"], lines[0]["output_ids"]);
}
