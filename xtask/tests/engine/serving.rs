//! `generate` with the tiny Llama: batches, preemption, shared prefixes, samples.

use std::slice;

use serde_json::Value;

use crate::{golden_ids, ids_file, output_ids, prompts, run, tiny};

#[test]
fn a_batch_gives_the_tokens_of_transformers() {
    let prompts = [0, 1, 2, 3].map(|n| golden_ids(&format!("prompt_{n}")));
    let greedy = [0, 1, 2, 3].map(|n| golden_ids(&format!("greedy_{n}")));
    let file = ids_file(&prompts);
    let lines = run(tiny("generate").arg("--ids-file").arg(file.path()).args([
        "--max-tokens",
        "40",
        "--kv-dtype",
        "f32",
    ]));
    assert_eq!(output_ids(&lines), greedy);
    for (line, prompt) in lines.iter().zip(&prompts) {
        assert_eq!(crate::ids(&line["prompt_ids"]), *prompt);
        assert_eq!(line["prompt_tokens"], prompt.len());
        assert_eq!((&line["text"], &line["finish_reason"]), (&"".into(), &"length".into()));
    }
}

#[test]
fn a_pool_that_is_too_small_preempts_and_changes_no_token() {
    let file = ids_file(&prompts([60, 50, 70, 40]));
    // Recomputed rows are decode rows that come back as prefill: equal in f32 as far as tokens show, in f16 bit by bit
    // where that was asked for. Swapped blocks come back as they went.
    for flags in [
        &["--preempt", "recompute", "--kv-dtype", "f32"][..],
        &["--preempt", "recompute", "--reproducible"],
        &["--preempt", "swap"],
        &["--preempt", "swap", "--kv-dtype", "int8", "--reproducible"],
        &["--preempt", "swap", "--kv-dtype", "fp8", "--reproducible"],
    ] {
        let serve = |more: &[&str]| {
            let mut generate = tiny("generate");
            generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "40"]);
            run(generate.args(flags).args(more))
        };
        let preemptions =
            |lines: &[Value]| lines.iter().map(|l| l["preemptions"].as_u64().unwrap()).sum::<u64>();
        let roomy = serve(&[]);
        assert_eq!(preemptions(&roomy), 0);
        // 11 blocks of 16 tokens for prompts that grow to 100, 90, 110 and 80.
        let tight = serve(&["--kv-blocks", "12"]);
        assert!(preemptions(&tight) > 0, "11 blocks were enough for four prompts");
        assert!(tight.iter().all(|line| line["kv"]["full"]["blocks"].as_u64().unwrap() <= 11));
        assert_eq!(output_ids(&tight), output_ids(&roomy), "{flags:?}");
    }
}

#[test]
fn prompts_that_begin_alike_share_blocks_and_keep_their_tokens() {
    let [common, a, b, c] = prompts([64, 3, 2, 10]);
    let all = [a, b, c].map(|end| [&common[..], &end].concat());
    let serve = |lists: &[Vec<u32>], more: &[&str]| {
        let file = ids_file(&lists);
        let mut generate = tiny("generate");
        generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "8", "--kv-dtype", "f32"]);
        run(generate.args(more))
    };
    let cached = |lines: &[Value]| -> Vec<u64> {
        lines.iter().map(|line| line["cached_tokens"].as_u64().unwrap()).collect()
    };
    let together = serve(&all, &[]);
    assert_eq!(cached(&together), [0, 64, 64]);
    let alone: Vec<Value> = all.iter().flat_map(|prompt| serve(slice::from_ref(prompt), &[])).collect();
    assert_eq!(cached(&alone), [0, 0, 0]);
    assert_eq!(output_ids(&together), output_ids(&alone));
    // A salt keeps runs apart, not the prompts of one run.
    let salted = serve(&all, &["--salt", "tenant"]);
    assert_eq!(cached(&salted), [0, 64, 64]);
    assert_eq!(output_ids(&salted), output_ids(&together));
}

/// Codes and their scales move with their block: a prefix hit, copy on write and a tier change no token.
#[test]
fn caches_of_codes_share_copy_and_keep_blocks() {
    let [common, more] = prompts([70, 30]);
    for dtype in ["fp8", "int8"] {
        let serve = |prompt: &[u32], more: &[&str]| {
            let file = ids_file(&prompt);
            let flags = ["--max-tokens", "8", "--kv-dtype", dtype, "--reproducible"];
            run(tiny("generate").arg("--ids-file").arg(file.path()).args(flags).args(more))
        };
        let longer = [&common[..], &more].concat();
        let alone = output_ids(&serve(&longer, &[]));
        let folder = tempfile::tempdir().unwrap();
        let disk = format!("host=1MiB,disk={}:16MiB", folder.path().display());
        serve(&common, &["--kv-tiers", &disk]);
        let found = serve(&longer, &["--kv-tiers", &disk]);
        assert_eq!(found[0]["cached_tokens"], 64, "{dtype}");
        assert_eq!(output_ids(&found), alone, "{dtype}");
        // Samples share the prompt and copy its last block, which is not full.
        let samples = serve(&longer, &["--n", "3"]);
        assert_eq!(output_ids(&samples), [&alone[..], &alone, &alone].concat(), "{dtype}");
        // A block of 16 tokens: 2 layers, K and V, 2 heads of 16 elements, with int8 also a scale.
        let bytes = samples[0]["kv"]["full"]["bytes"].as_u64().unwrap();
        let blocks = samples[0]["kv"]["full"]["blocks"].as_u64().unwrap();
        let f16 = serve_bytes(&longer);
        assert_eq!(bytes / blocks * 2, if dtype == "fp8" { f16 } else { f16 + f16 / 4 }, "{dtype}");
    }
}

/// Bytes of a block of f16.
fn serve_bytes(prompt: &[u32]) -> u64 {
    let file = ids_file(&prompt);
    let line = run(tiny("generate").arg("--ids-file").arg(file.path()).args(["--max-tokens", "1"])).remove(0);
    let of = |key: &str| line["kv"]["full"][key].as_u64().unwrap();
    of("bytes") / of("blocks")
}

/// One prompt of 40 tokens with `flags`, 12 tokens generated.
fn sampled(flags: &[&str]) -> Vec<Value> {
    let [prompt] = prompts([40]);
    let file = ids_file(&prompt);
    let mut generate = tiny("generate");
    run(generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "12"]).args(flags))
}

#[test]
fn samples_share_the_prompt_and_seeds_reproduce_them() {
    let three = |seed| sampled(&["--n", "3", "--temperature", "2", "--seed", seed]);
    let samples = three("7");
    let drawn = output_ids(&samples);
    assert_eq!(drawn.len(), 3);
    assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2] && drawn[0] != drawn[2], "{drawn:?}");
    assert_eq!(output_ids(&three("7")), drawn);
    assert_ne!(output_ids(&three("8")), drawn);
    // Company changes nothing: the first sample is what one sample alone draws.
    assert_eq!(output_ids(&sampled(&["--temperature", "2", "--seed", "7"])), drawn[..1]);
    // 51 tokens are fed: two full blocks of 16 in common, two blocks of its own for each sample.
    assert_eq!(samples[0]["kv"]["full"]["blocks"], 2 + 3 * 2);
    for line in &samples {
        assert_eq!(line["prompt_tokens"], 40);
        let speed = line["timing"]["prefill_tok_s"].as_f64().unwrap();
        assert!(speed < 1e6, "sample {}: a prefill of {speed} tok/s", line["sample"]);
    }
}

#[test]
fn filters_that_leave_one_token_are_greedy() {
    let greedy = output_ids(&sampled(&[]));
    for filter in [["--top-k", "1"], ["--top-p", "0.000001"], ["--min-p", "1"]] {
        let drawn = sampled(&[&filter[..], &["--temperature", "5", "--seed", "3"]].concat());
        assert_eq!(output_ids(&drawn), greedy, "{filter:?}");
    }
    assert_ne!(output_ids(&sampled(&["--temperature", "5", "--seed", "3"])), greedy);
}

#[test]
fn max_tokens_ends_a_sample() {
    let [prompt] = prompts([40]);
    let file = ids_file(&prompt);
    let generate = |max_tokens| {
        run(tiny("generate").arg("--ids-file").arg(file.path()).args(["--max-tokens", max_tokens])).remove(0)
    };
    let (one, seven) = (generate("1"), generate("7"));
    let seven_ids = crate::ids(&seven["output_ids"]);
    assert_eq!(seven_ids.len(), 7);
    assert_eq!(crate::ids(&one["output_ids"]), seven_ids[..1]);
    assert_eq!((&one["finish_reason"], &seven["finish_reason"]), (&"length".into(), &"length".into()));
    assert!(one["timing"]["decode_tok_s"].is_null() && seven["timing"]["decode_tok_s"].is_number());
}
