//! `--index-dtype fp8`: index keys are parts of blocks, and move with them.

use std::path::Path;

use serde_json::Value;

use crate::{fixture, golden, ids_file, output_ids, refused, run, tiny, usual, xtask};

/// `generate` over the prompts, 24 tokens each.
fn serve(name: &str, prompts: &[Vec<u32>], flags: &[&str]) -> Vec<Value> {
    let file = ids_file(&prompts);
    let mut generate = xtask("generate");
    generate.arg("--model").arg(fixture(name)).arg("--ids-file").arg(file.path());
    run(generate.args(["--raw", "--max-tokens", "24", "--reproducible"]).args(flags))
}

fn prompt(name: &str, n: usize) -> Vec<u32> {
    golden(name, &format!("prompt_{n}"))
}

fn total(lines: &[Value], counter: &str) -> u64 {
    lines.iter().map(|line| line[counter].as_u64().unwrap()).sum()
}

/// A pool that is too small swaps blocks out and in, and changes no token.
#[track_caller]
fn swaps(name: &str, flags: &[&str], tight: &str) {
    let prompts = [prompt(name, 3), prompt(name, 3)[7..].to_vec(), prompt(name, 2)];
    let flags = [flags, &["--preempt", "swap"]].concat();
    let roomy = serve(name, &prompts, &flags);
    assert_eq!(total(&roomy, "preemptions"), 0, "{name}");
    let pressed = serve(name, &prompts, &[&flags[..], &["--kv-blocks", tight]].concat());
    assert!(total(&pressed, "preemptions") > 0, "{name}: {tight} blocks were enough for three prompts");
    assert_eq!(output_ids(&pressed), output_ids(&roomy), "{name}, {flags:?}");
}

#[test]
fn index_keys_in_fp8_share_copy_swap_and_keep_blocks() {
    const NAME: &str = "tiny-deepseek-v32";
    let longer = prompt(NAME, 3);
    // Three layers: latents of 48 elements, in codes with two scales; index keys of 32, in codes with one.
    let cases = [(["--kv-dtype", "fp8"], 48 + 8 + 36), (["--index-dtype", "fp8"], 2 * 48 + 36)];
    for &(flags, layer) in usual(1, &cases) {
        let serve = |prompt: &[u32], more: &[&str]| serve(NAME, &[prompt.to_vec()], &[&flags, more].concat());
        let alone = serve(&longer, &[]);
        let of = |key: &str| alone[0]["kv"]["full"][key].as_u64().unwrap();
        assert_eq!(of("bytes") / of("blocks"), 16 * 3 * layer, "{flags:?}");
        let alone = output_ids(&alone);
        let folder = tempfile::tempdir().unwrap();
        let disk = format!("host=1MiB,disk={}:16MiB", folder.path().display());
        serve(&longer[..70], &["--kv-tiers", &disk]);
        let found = serve(&longer, &["--kv-tiers", &disk]);
        assert_eq!(found[0]["cached_tokens"], 64, "{flags:?}");
        assert_eq!(output_ids(&found), alone, "{flags:?}");
        // Samples share the prompt and copy its last block, which is not full.
        let samples = serve(&longer, &["--n", "3"]);
        assert_eq!(output_ids(&samples), [&alone[..], &alone, &alone].concat(), "{flags:?}");
        swaps(NAME, &flags, "20");
    }
}

#[test]
fn index_keys_of_entries_swap() {
    swaps(
        "tiny-deepseek-v4",
        &["--index-dtype", "fp8", "--kv-dtype", "f32", "--block-size", "8", "--chunk", "64"],
        "160",
    );
}

#[test]
fn index_keys_of_another_format_are_refused() {
    let prompts = ids_file(&[[1_u32, 2, 3]]);
    let said =
        refused(tiny("generate").arg("--ids-file").arg(prompts.path()).args(["--index-dtype", "fp8"]), 1);
    assert!(said.contains("index keys in fp8 need an indexer, which the model does not have"), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let generate = |path: &Path, dtype: &str| {
        let mut generate = xtask("generate");
        generate.arg("--model").arg(fixture("tiny-deepseek-v32")).arg("--ids-file").arg(path);
        let disk = format!("disk={}:16MiB", folder.path().display());
        generate.args(["--raw", "--max-tokens", "2", "--index-dtype", dtype, "--kv-tiers", &disk]);
        generate
    };
    run(&mut generate(prompts.path(), "f16"));
    let said = refused(&mut generate(prompts.path(), "fp8"), 1);
    assert!(said.contains("index keys in f16 there, index keys in fp8 here"), "{said}");
}
