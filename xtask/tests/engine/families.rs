//! `generate` with the tiny models of every family: greedy tokens of transformers in a batch, after a prefix hit and after
//! preemption, and what their cache groups hold. Families that keep their blocks as another one does are for the long form:
//! `models` compares the logits of each.

use kvblock::{AttentionKind, BlockSize, KvCacheSpec, KvDtype, LengthLimits};
use serde_json::Value;

use crate::{fixture, golden, golden_margins, ids_file, is_long, output_ids, run, xtask};

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

/// Compares tokens up to the first where the reference is torn between two, as another order of additions may be.
fn assert_greedy(name: &str, lines: &[Value], prompts: &[usize]) {
    for (ids, prompt) in output_ids(lines).iter().zip(prompts) {
        let margins = golden_margins(name, &format!("margins_{prompt}"));
        let sure = margins.iter().position(|margin| *margin < SURE).unwrap_or(TOKENS).min(TOKENS);
        let greedy = golden(name, &format!("greedy_{prompt}"));
        assert_eq!(ids[..sure], greedy[..sure], "{name}, prompt {prompt}");
    }
}

/// Tokens of a block, of a chunk of a prompt, and blocks of a pool that is too small for three prompts.
struct Sizes {
    block: u32,
    chunk: u32,
    tight: u32,
    /// The way to make room in it, by default; the long form takes every way.
    preempt: &'static str,
}

/// The prompts of 17, 64 and 200 tokens, the longest twice: the second time its blocks are there. Then in a pool of `tight`
/// blocks, too few for all of them. Returns what the groups held in the first run.
fn serves(name: &str, sizes: &Sizes) -> Value {
    let [block, chunk, tight] = [sizes.block, sizes.chunk, sizes.tight].map(|n| n.to_string());
    let flags = ["--block-size", &block, "--chunk", &chunk];
    let order = [1, 2, 3, 3];
    let prompts = order.map(|n| golden(name, &format!("prompt_{n}")));
    let lines = generate(name, &prompts, &flags);
    assert_greedy(name, &lines, &order);
    // What the first had computed when the second came.
    let cached = lines[3]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= u64::from(sizes.chunk), "{name}: {cached}");
    assert_eq!(preemptions(&lines), 0, "{name}: the pool was to hold all");

    let prompts = [3, 3, 2].map(|n| golden(name, &format!("prompt_{n}")));
    // Without common beginnings, so that every sequence needs its own blocks.
    let prompts = [&prompts[0][..], &prompts[1][7..], &prompts[2]].map(<[u32]>::to_vec);
    let roomy = generate(name, &prompts, &flags);
    let every: &[&str] = if is_long() { &["recompute", "swap"] } else { &[sizes.preempt] };
    for mode in every {
        let pressed = [&flags[..], &["--preempt", mode, "--kv-blocks", &tight]].concat();
        let pressed = generate(name, &prompts, &pressed);
        assert!(preemptions(&pressed) > 0, "{name}: {tight} blocks were enough for three prompts");
        assert_eq!(output_ids(&pressed), output_ids(&roomy), "{name}, {mode}");
        assert_greedy(name, &pressed[..1], &[3]);
    }
    lines[0]["kv"].clone()
}

fn preemptions(lines: &[Value]) -> u64 {
    lines.iter().map(|line| line["preemptions"].as_u64().unwrap()).sum()
}

fn blocks(kv: &Value, group: &str) -> u64 {
    kv[group]["blocks"].as_u64().unwrap_or_else(|| panic!("no group {group} in {kv}"))
}

#[test]
fn qwen2_serves() {
    if !is_long() {
        return;
    }
    serves("tiny-qwen2", &Sizes { block: 32, chunk: 64, tight: 14, preempt: "recompute" });
}

#[test]
fn qwen3_serves() {
    if !is_long() {
        return;
    }
    let kv = serves("tiny-qwen3", &Sizes { block: 64, chunk: 64, tight: 8, preempt: "swap" });
    assert!(blocks(&kv, "full") >= 4);
}

#[test]
fn experts_of_qwen3_serve() {
    if !is_long() {
        return;
    }
    serves("tiny-qwen3-moe", &Sizes { block: 4, chunk: 64, tight: 110, preempt: "recompute" });
}

#[test]
fn mistral_gives_blocks_back() {
    let kv = serves("tiny-mistral", &Sizes { block: 4, chunk: 16, tight: 20, preempt: "swap" });
    // A window of 24 and a chunk of 16 reach over at most 11 blocks of 4, those of 4 sequences over more.
    assert!(blocks(&kv, "window_24") <= 4 * 11, "{kv}");
}

#[test]
fn gemma3_has_groups_for_windows() {
    serves("tiny-gemma3", &Sizes { block: 16, chunk: 64, tight: 64, preempt: "recompute" });
    // A long text holds all its blocks in the layer that sees everything, and what a window and a chunk reach over in the others.
    let text: Vec<u32> = (0..3000_u32).map(|i| (i * 7919 + i / 3) % 128).collect();
    let kv = &generate("tiny-gemma3", &[text], &["--block-size", "16", "--chunk", "64"])[0]["kv"];
    assert_eq!(blocks(kv, "full"), u64::try_from(3000 + TOKENS).unwrap().div_ceil(16), "{kv}");
    for group in ["window_24", "window_24.5"] {
        assert!(blocks(kv, group) <= (23_u64 + 64).div_ceil(16) + 1, "{kv}");
    }
}

#[test]
fn gpt_oss_has_a_group_for_windows() {
    if !is_long() {
        return;
    }
    let kv = serves("tiny-gpt-oss", &Sizes { block: 16, chunk: 64, tight: 33, preempt: "swap" });
    assert!(blocks(&kv, "window_16") < blocks(&kv, "full"), "{kv}");
}

#[test]
fn llama4_has_groups_for_chunks() {
    let kv = serves("tiny-llama4", &Sizes { block: 16, chunk: 64, tight: 40, preempt: "recompute" });
    for group in ["chunk_16", "chunk_16.1", "chunk_16.2"] {
        assert!(blocks(&kv, group) < blocks(&kv, "full"), "{kv}");
    }
}

#[test]
fn deepseek_v3_keeps_latents() {
    if !is_long() {
        return;
    }
    let kv = serves("tiny-deepseek-v3", &Sizes { block: 16, chunk: 64, tight: 32, preempt: "swap" });
    // 32 elements and 16 that rotate, of each token in each of 3 layers.
    let full = &kv["full"];
    let bytes = full["bytes"].as_u64().unwrap() / full["blocks"].as_u64().unwrap();
    assert_eq!(bytes, 16 * 3 * (32 + 16) * 4);
}

#[test]
fn deepseek_v32_keeps_latents_and_index_keys() {
    let kv = serves("tiny-deepseek-v32", &Sizes { block: 16, chunk: 64, tight: 32, preempt: "recompute" });
    // A latent of 32 and 16 elements and an index key of 32, of each token in each of 3 layers.
    let full = &kv["full"];
    let bytes = full["bytes"].as_u64().unwrap() / full["blocks"].as_u64().unwrap();
    assert_eq!(bytes, 16 * 3 * (32 + 16 + 32) * 4);
}

/// Blocks grow to whole entries: of 8 tokens of the window, 32 of the caches of entries, and 2 and 4 of states.
#[test]
fn deepseek_v4_keeps_windows_entries_and_states() {
    let kv = serves("tiny-deepseek-v4", &Sizes { block: 8, chunk: 64, tight: 90, preempt: "swap" });
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

/// Blocks of the cache are no larger than those that are selected: of 64 tokens asked for, 16.
#[test]
fn nsa_keeps_means_of_its_blocks() {
    let kv = serves("tiny-nsa", &Sizes { block: 64, chunk: 64, tight: 32, preempt: "recompute" });
    // 16 keys and values, and the mean of each, of 2 heads of 16 elements in each of 2 layers.
    let full = &kv["full"];
    let bytes = full["bytes"].as_u64().unwrap() / full["blocks"].as_u64().unwrap();
    assert_eq!(bytes, 2 * (16 + 1) * (2 * 2 * 16 * 4));
}

#[test]
fn gguf_serves_like_safetensors() {
    let prompts = [1, 3].map(|n| golden("tiny-gpt-oss-mxfp4", &format!("prompt_{n}")));
    for model in ["tiny-gpt-oss-mxfp4", "tiny-gpt-oss-mxfp4/model.gguf"] {
        // Of the size for which `models` compiles the kernels too.
        let lines = generate(model, &prompts, &["--block-size", "16"]);
        assert_greedy("tiny-gpt-oss-mxfp4", &lines, &[1, 3]);
    }
}

/// Draws 600 tokens, with `PAGODA_LONG_TESTS=1` 2,000, beside tiers: no step holds more blocks of `groups` than kvblock promises
/// for them, and a pool that gives no block back, since it goes on in memory of the host, gives the same tokens.
fn recycles(name: &str, groups: &[&str], kind: AttentionKind) {
    const CHUNK: u32 = 8;
    let file = ids_file(&[golden(name, "prompt_1")]);
    let draw = |tokens: &str, flags: &[&str]| {
        let mut generate = xtask("generate");
        generate.arg("--model").arg(fixture(name)).arg("--ids-file").arg(file.path());
        let chunk = CHUNK.to_string();
        let sizes =
            ["--raw", "--reproducible", "--max-tokens", tokens, "--block-size", "8", "--chunk", &chunk];
        run(generate.args(sizes).args(["--kv-dtype", "f32"]).args(flags)).remove(0)
    };
    let tokens = if is_long() { 2000 } else { 600 };
    let recycled = draw(&tokens.to_string(), &["--kv-tiers", "host=64MiB"]);
    let drawn = crate::ids(&recycled["output_ids"]);
    assert_eq!(drawn.len(), tokens);
    let spec = KvCacheSpec::new(kind, BlockSize::new(8).unwrap(), 1, 8, KvDtype::F32);
    // A step takes a chunk of prompts and a token of each sequence that decodes.
    let limits = LengthLimits::new(2100).max_batched_tokens(CHUNK + 1);
    let promised = u64::from(spec.max_blocks_per_seq(limits));
    assert!(promised < 8, "{promised} blocks are not few");
    for group in groups {
        let held = blocks(&recycled["kv"], group);
        assert!(held <= promised, "{name}: {held} blocks of {group}, {promised} were promised");
    }
    // A pool of windows alone never goes on in memory of the host.
    if recycled["kv"].get("full").is_some() {
        let kept = draw("500", &["--kv-tiers", "host=64MiB", "--kv-blocks", "60"]);
        assert_eq!(blocks(&kept["kv"], "full"), (17u64 + 499).div_ceil(8), "{name}");
        assert_eq!(crate::ids(&kept["output_ids"]), drawn[..500], "{name}");
    }
}

#[test]
fn mistral_recycles() {
    recycles("tiny-mistral", &["window_24"], AttentionKind::SlidingWindow { window: 24 });
}

#[test]
fn gpt_oss_recycles() {
    if !is_long() {
        return;
    }
    recycles("tiny-gpt-oss", &["window_16"], AttentionKind::SlidingWindow { window: 16 });
}

#[test]
fn llama4_recycles() {
    let groups = ["chunk_16", "chunk_16.1", "chunk_16.2"];
    recycles("tiny-llama4", &groups, AttentionKind::ChunkedLocal { chunk: 16 });
}
