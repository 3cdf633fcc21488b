//! Thirty-two prompts of mixed length over a pool far too small for them: the ids of a large pool, whatever preemption does.

use serde_json::Value;

use crate::{ids_file, output_ids, prompts, refused, run, tiny};

/// 2 to 126 tokens; every fourth begins like the first.
fn thirty_two() -> Vec<Vec<u32>> {
    let lengths: [usize; 32] = std::array::from_fn(|i| 2 + i * 29 % 125);
    let mut all = prompts(lengths).to_vec();
    let [common] = prompts([40]);
    for prompt in all.iter_mut().step_by(4) {
        let shared = prompt.len().min(40);
        prompt[..shared].copy_from_slice(&common[..shared]);
    }
    all
}

fn total(lines: &[Value], key: &str) -> u64 {
    lines.iter().map(|line| line[key].as_u64().unwrap()).sum()
}

/// The trial with `flags`, in a large pool and in one of 15 blocks of 16 tokens.
#[track_caller]
fn trial(flags: &[&str], samples: usize) {
    let file = ids_file(&thirty_two());
    let serve = |more: &[&str]| {
        let mut generate = tiny("generate");
        generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "20"]);
        run(generate.args(flags).args(more))
    };
    let roomy = serve(&[]);
    assert_eq!((roomy.len(), total(&roomy, "preemptions")), (32 * samples, 0));
    assert!(total(&roomy, "cached_tokens") > 0, "eight prompts begin alike");
    let tight = serve(&["--kv-blocks", "16"]);
    assert!(total(&tight, "preemptions") > 0, "15 blocks held them all");
    assert!(tight.iter().all(|line| line["kv"]["full"]["blocks"].as_u64().unwrap() <= 15));
    assert_eq!(output_ids(&tight), output_ids(&roomy), "{flags:?}");
}

#[test]
fn recomputed_sequences_keep_their_tokens() {
    trial(&["--preempt", "recompute", "--reproducible"], 1);
}

#[test]
fn swapped_sequences_keep_their_tokens() {
    trial(&["--preempt", "swap", "--reproducible"], 1);
}

#[test]
fn samples_that_share_their_prompts_keep_their_tokens() {
    let flags = ["--preempt", "swap", "--reproducible", "--n", "2", "--temperature", "1.5", "--seed", "3"];
    trial(&[&flags[..], &["--salt", "tenant"]].concat(), 2);
}

#[test]
fn one_that_can_never_fit_is_refused_before_any_runs() {
    let [long] = prompts([250]);
    let mut all = thirty_two();
    all.insert(20, long);
    let file = ids_file(&all);
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "20", "--kv-blocks", "16"]);
    let said = refused(&mut generate, 1);
    let numbers = "prompt 20: 17 blocks needed for 269 tokens, the pool has 15; context length 4096";
    assert!(said.contains(numbers), "{said}");
}
