//! `generate` with the tiny models of every family: greedy tokens of transformers in a batch, after a prefix hit and after
//! preemption, and what their cache groups hold.

use serde_json::Value;

use crate::{fixture, golden, golden_margins, ids_file, output_ids, run, xtask};

const TOKENS: usize = 24;

/// A gap between the two largest logits that rounding in f32 does not close.
const SURE: f32 = 1e-3;

fn generate(name: &str, prompts: &[Vec<u32>], flags: &[&str]) -> Vec<Value> {
    let file = ids_file(&prompts);
    let tokens = TOKENS.to_string();
    let mut generate = xtask("generate");
    generate.arg("--model").arg(fixture(name)).arg("--ids-file").arg(file.path());
    run(generate.args(["--raw", "--kv-dtype", "f32", "--max-tokens", &tokens]).args(flags))
}

/// Where the reference is torn between two tokens, so may be another order of additions.
fn assert_greedy(name: &str, lines: &[Value], prompts: &[usize]) {
    for (ids, prompt) in output_ids(lines).iter().zip(prompts) {
        let margins = golden_margins(name, &format!("margins_{prompt}"));
        let sure = margins.iter().position(|margin| *margin < SURE).unwrap_or(TOKENS).min(TOKENS);
        let greedy = golden(name, &format!("greedy_{prompt}"));
        assert_eq!(ids[..sure], greedy[..sure], "{name}, prompt {prompt}");
    }
}

/// The prompts of 17, 64 and 200 tokens, the longest twice: the second time its blocks are there. Then in a pool of `tight`
/// blocks, too few for all of them. Returns what the groups held in the first run.
fn serves(name: &str, block_size: &str, tight: Option<&str>) -> Value {
    let order = [1, 2, 3, 3];
    let prompts = order.map(|n| golden(name, &format!("prompt_{n}")));
    let lines = generate(name, &prompts, &["--block-size", block_size, "--chunk", "64"]);
    assert_greedy(name, &lines, &order);
    assert!(lines[3]["cached_tokens"].as_u64().unwrap() >= 96, "{name}: {}", lines[3]["cached_tokens"]);

    let kv = lines[0]["kv"].clone();
    let Some(tight) = tight else { return kv };
    let prompts = [3, 3, 2].map(|n| golden(name, &format!("prompt_{n}")));
    // Without common beginnings, so that every sequence needs its own blocks.
    let prompts = [&prompts[0][..], &prompts[1][7..], &prompts[2]].map(<[u32]>::to_vec);
    for mode in ["recompute", "swap"] {
        let flags = ["--block-size", block_size, "--preempt", mode, "--chunk", "64"];
        let roomy = generate(name, &prompts, &flags);
        let pressed = generate(name, &prompts, &[&flags[..], &["--kv-blocks", tight]].concat());
        let preemptions: u64 = pressed.iter().map(|line| line["preemptions"].as_u64().unwrap()).sum();
        assert!(preemptions > 0, "{name}: {tight} blocks were enough for three prompts");
        assert_eq!(output_ids(&pressed), output_ids(&roomy), "{name}, {mode}");
        assert_greedy(name, &pressed[..1], &[3]);
    }
    kv
}

fn blocks(kv: &Value, group: &str) -> u64 {
    kv[group]["blocks"].as_u64().unwrap_or_else(|| panic!("no group {group} in {kv}"))
}

#[test]
fn qwen3_serves() {
    let kv = serves("tiny-qwen3", "16", Some("32"));
    assert!(blocks(&kv, "full") >= 14);
}

#[test]
fn mistral_gives_blocks_back() {
    let kv = serves("tiny-mistral", "8", None);
    // Windows hold so little that nothing is ever preempted. One of 24 tokens and a chunk of 64 and of single tokens reach over at most 12 blocks of 8, for 4 sequences.
    assert!(blocks(&kv, "window_24") <= 4 * 12, "{kv}");
}

#[test]
fn gpt_oss_has_a_group_for_windows() {
    let kv = serves("tiny-gpt-oss", "16", Some("37"));
    assert!(blocks(&kv, "window_16") < blocks(&kv, "full"), "{kv}");
}

#[test]
fn llama4_has_groups_for_chunks() {
    let kv = serves("tiny-llama4", "16", Some("40"));
    for group in ["chunk_16", "chunk_16.1", "chunk_16.2"] {
        assert!(blocks(&kv, group) < blocks(&kv, "full"), "{kv}");
    }
}

#[test]
fn deepseek_v32_keeps_latents_and_index_keys() {
    let kv = serves("tiny-deepseek-v32", "16", Some("32"));
    // Of each token in each of 3 layers: a latent of 32 and 16 elements, and an index key of 32.
    let full = &kv["full"];
    let bytes = full["bytes"].as_u64().unwrap() / full["blocks"].as_u64().unwrap();
    assert_eq!(bytes, 16 * 3 * (32 + 16 + 32) * 4);
}

/// Blocks grow to whole entries: of 8 tokens of the window, 32 of the caches of entries, and 2 and 4 of states.
#[test]
fn deepseek_v4_keeps_windows_entries_and_states() {
    let kv = serves("tiny-deepseek-v4", "8", Some("90"));
    // One chunk of 64 tokens and three of single ones, beside what the window reaches back over.
    let promised = |window: u64, block: u64| {
        let blocks = |tokens: u64| (window - 1 + tokens).div_ceil(block) + 1;
        blocks(64) + 3 * blocks(1)
    };
    let held = |kind: &str| -> Vec<u64> {
        let groups = kv.as_object().unwrap().iter().filter(|(name, _)| name.starts_with(kind));
        groups.map(|(_, group)| group["blocks"].as_u64().unwrap()).collect()
    };
    for (kind, most) in
        [("window_16", promised(16, 8)), ("states_8", promised(8, 2)), ("states_32", promised(32, 4))]
    {
        let held = held(kind);
        assert!(!held.is_empty() && held.iter().all(|blocks| *blocks <= most), "{kind}: {most} of {kv}");
    }
    assert!(blocks(&kv, "full") >= 224 / 32, "{kv}");
}

/// 600 tokens through windows of 24: no step holds more than the window, and what one step computes, reaches over.
#[test]
fn windows_hold_no_more_than_promised() {
    let file = ids_file(&[golden("tiny-mistral", "prompt_1")]);
    let mut generate = xtask("generate");
    generate.arg("--model").arg(fixture("tiny-mistral")).arg("--ids-file").arg(file.path());
    let lines = run(generate.args(["--raw", "--max-tokens", "600", "--block-size", "4", "--chunk", "16"]));
    assert_eq!(output_ids(&lines)[0].len(), 600);
    // 23 tokens before, 16 of a chunk and one that is drawn, in blocks of 4 that the window may begin inside of.
    let promised = (23u64 + 16 + 1).div_ceil(4) + 1;
    let held = blocks(&lines[0]["kv"], "window_24");
    assert!(held <= promised, "{held} blocks, {promised} were promised");
}
