//! `generate --beams` against a beam search that recomputes every hypothesis from its first token.

use std::slice;

use serde_json::Value;

use crate::{golden_ids, ids, ids_file, prompts, refused, run, tiny};

#[derive(Clone)]
struct Hypothesis {
    tokens: Vec<u32>,
    log_prob: f64,
}

/// The likeliest tokens after each of `sequences`, by `score`: `[sequences][top]` of id and log probability.
fn score(sequences: &[Vec<u32>], top: usize) -> Vec<Vec<(u32, f64)>> {
    let file = ids_file(&sequences);
    let mut score = tiny("score");
    score.arg("--ids-file").arg(file.path()).args(["--kv-dtype", "f32", "--top", &top.to_string()]);
    let offers = |line: &Value| {
        let log_probs = line["top_logprobs"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap());
        ids(&line["top_ids"]).into_iter().zip(log_probs).collect()
    };
    run(&mut score).iter().map(offers).collect()
}

/// The `width` best continuations of `len` tokens; nothing ends early.
fn naive(prompt: &[u32], width: usize, len: usize) -> Vec<Hypothesis> {
    let mut live = vec![Hypothesis { tokens: Vec::new(), log_prob: 0.0 }];
    for _ in 0..len {
        let sequences: Vec<Vec<u32>> = live.iter().map(|h| [prompt, &h.tokens[..]].concat()).collect();
        let mut next = Vec::new();
        for (parent, offers) in live.iter().zip(score(&sequences, 2 * width)) {
            for (token, log_prob) in offers {
                let tokens = [&parent.tokens[..], &[token]].concat();
                next.push(Hypothesis { tokens, log_prob: parent.log_prob + log_prob });
            }
        }
        next.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
        next.truncate(width);
        live = next;
    }
    live
}

fn beams(prompts: &[Vec<u32>], width: usize, len: usize, flags: &[&str]) -> Vec<Value> {
    let file = ids_file(&prompts);
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--kv-dtype", "f32", "--max-tokens", &len.to_string()]);
    run(generate.args(["--beams", &width.to_string()]).args(flags))
}

#[test]
fn beams_are_those_of_a_search_by_full_recomputation() {
    // 14 tokens: the hypotheses part inside a block, and outgrow it.
    let [prompt] = prompts([14]);
    let (width, len) = (4, 7);
    let expected = naive(&prompt, width, len);
    let found = beams(slice::from_ref(&prompt), width, len, &[]);
    assert_eq!(found.len(), width);
    for (rank, (line, hypothesis)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(line["sample"], rank);
        assert_eq!(ids(&line["output_ids"]), hypothesis.tokens, "rank {rank}");
        let log_prob = line["log_prob"].as_f64().unwrap();
        assert!((log_prob - hypothesis.log_prob).abs() < 1e-4, "{log_prob}, naively {}", hypothesis.log_prob);
        assert_eq!((&line["finish_reason"], &line["preemptions"]), (&"length".into(), &0.into()));
    }
}

#[test]
fn one_beam_is_the_greedy_continuation() {
    let found = beams(&[golden_ids("prompt_1")], 1, 24, &[]);
    assert_eq!(ids(&found[0]["output_ids"]), golden_ids("greedy_1")[..24]);
}

#[test]
fn beams_share_the_blocks_of_their_prompt_and_leave_none_behind() {
    let [a, b] = prompts([100, 96]);
    let lines = beams(&[a.clone(), b.clone()], 6, 12, &[]);
    let alone = beams(slice::from_ref(&b), 6, 12, &[]);
    let output = |lines: &[Value]| lines.iter().map(|line| ids(&line["output_ids"])).collect::<Vec<_>>();
    assert_eq!(output(&lines[6..]), output(&alone), "the second prompt after the first, and alone");
    // Six shared blocks of 16 tokens, and one or two for each beam: without sharing they would be 42.
    let most = lines[5]["kv"]["full"]["blocks"].as_u64().unwrap();
    assert!((8..=18).contains(&most), "{most} blocks");
    // The pool is exactly what a search needs at its largest, 6 + 6 x 1 blocks: a leak would not let the second run.
    let tight = beams(&[a, b], 6, 12, &["--kv-blocks", "13"]);
    assert_eq!(output(&tight), output(&lines));
}

#[test]
fn beams_that_never_fit_are_refused_with_the_numbers() {
    let [prompt] = prompts([20]);
    let file = ids_file(&prompt);
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path());
    let said = refused(generate.args(["--beams", "4", "--max-tokens", "30", "--kv-blocks", "13"]), 1);
    assert!(said.contains("prompt 0: 13 blocks needed for 4 beams of 49 tokens, the pool has 12"), "{said}");
    for other in [["--n", "2"], ["--temperature", "1"], ["--stop", "x"]] {
        let said = refused(tiny("generate").args(["--prompt", "x", "--beams", "2"]).args(other), 2);
        assert!(said.contains("--beams") && said.contains(other[0]), "{said}");
    }
}
