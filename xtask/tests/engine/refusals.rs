//! Refusals of the engine: exit code 1, nothing on stdout, and a message with the object, the value and the limit.

use std::fs;
use std::slice;

use crate::{ids_file, prompts, refused, tiny, xtask};

/// Runs `command` on token ids with the tiny Llama and checks that its refusal says `parts`.
#[track_caller]
fn refuses(command: &str, ids: &[Vec<u32>], flags: &[&str], parts: &[&str]) {
    let file = ids_file(&ids);
    let said = refused(tiny(command).arg("--ids-file").arg(file.path()).args(flags), 1);
    for part in parts {
        assert!(said.contains(part), "{command} {flags:?} does not say {part:?}: {said}");
    }
}

#[test]
fn sequences_that_do_not_fit() {
    let [fits, long] = prompts([20, 5000]);
    let both = [fits.clone(), long];
    refuses("generate", &both, &[], &["prompt 1", "5000 tokens", "4096"]);
    refuses("score", &both, &[], &["sequence 1", "5000 tokens", "4096"]);
    let outside = [fits.clone(), vec![5, 6, 128]];
    let parts = ["token id 128 at position 2", "vocabulary of 128"];
    refuses("generate", &outside, &[], &[&["prompt 1"], &parts[..]].concat());
    refuses("score", &outside[1..], &[], &[&["sequence 0"], &parts[..]].concat());
    // 20 tokens and the 11 of 12 drawn ones that are fed need two blocks of 16; one of the pool's is the null block.
    let flags = ["--kv-blocks", "2"];
    refuses(
        "generate",
        slice::from_ref(&fits),
        &[&flags[..], &["--max-tokens", "12"]].concat(),
        &["prompt 0", "2 blocks", "pool has 1"],
    );
    refuses("score", &[fits], &flags, &["sequence 0", "20 of 20 tokens", "2 blocks needed, 1 free"]);
}

/// The tiny Llama has 4 query heads of 16 channels.
#[test]
fn policies_for_other_models() {
    let [prompt] = prompts([20]);
    let ids = slice::from_ref(&prompt);
    for command in ["generate", "score"] {
        refuses(command, ids, &["--sparse", "gsa:head_dim=999"], &["gsa: head_dim=999, the model has 16"]);
        refuses(command, ids, &["--sparse", "gsa:num_heads=7"], &["gsa: num_heads=7, the model has 4"]);
        let dsa = ["--sparse", "dsa:block_size=16,index_head_dim=128"];
        refuses(command, ids, &dsa, &["dsa: index_head_dim=128, the model has 16"]);
    }
}

#[test]
fn batches_that_decide_on_reproducible_results() {
    let [prompt] = prompts([20]);
    let flags = ["--sparse", "kvcomp:block_size=16,concurrency_threshold=4", "--reproducible"];
    let told = ["steps of fewer than 4 decoding sequences stay dense", "do not depend on a batch"];
    refuses("generate", slice::from_ref(&prompt), &flags, &told);
}

#[test]
fn certificates_of_policies_without_a_bound() {
    let [prompt] = prompts([20]);
    let flags = ["--sparse", "esa:block_size=16", "--certify"];
    refuses("generate", slice::from_ref(&prompt), &flags, &["esa:block_size=16 has no bound"]);
}

#[test]
fn inputs_that_are_not_there() {
    let [prompt] = prompts([4]);
    refuses(
        "generate",
        slice::from_ref(&prompt),
        &["--device", "no such adapter"],
        &["no such adapter", "0: "],
    );
    refuses(
        "score",
        &[prompt.clone(), prompt.clone()],
        &["--logits-out", "x"],
        &["--logits-out holds one sequence", "has 2"],
    );
    let said = refused(tiny("generate").args(["--prompt", "hi"]), 1);
    assert!(said.contains("no tokenizer") && said.contains("--ids-file"), "{said}");
    let said = refused(tiny("generate").args(["--ids-file", "no-such-file.json"]), 1);
    assert!(said.contains("no-such-file.json: cannot be read"), "{said}");
}

#[test]
fn models_that_are_not_there_or_broken() {
    let folder = tempfile::tempdir().unwrap();
    let file = ids_file(&[1, 2]);
    let open = |name: &str| {
        let mut generate = xtask("generate");
        let said = refused(
            generate.arg("--ids-file").arg(file.path()).arg("--model").arg(folder.path().join(name)),
            1,
        );
        assert!(said.contains(&format!("model {}", folder.path().join(name).display())), "{said}");
        // A cause is told once.
        let told: Vec<&str> = said.trim_end().split(": ").collect();
        assert!(told.windows(2).all(|pair| pair[0] != pair[1]), "{said}");
        said
    };
    assert!(open("missing").contains("no such file or folder"));
    assert!(
        open("").contains("holds neither model.safetensors nor model.safetensors.index.json nor a GGUF file")
    );
    for (name, told) in [
        ("a.bin", "weights that PyTorch saved are not read"),
        ("a.safetensors", "name the folder that it is in"),
        ("a.txt", "not with the bytes \"GGUF\""),
    ] {
        fs::write(folder.path().join(name), "nothing of the kind").unwrap();
        assert!(open(name).contains(told));
    }
    assert!(open("").contains("weights that PyTorch saved (.bin, .pt, .pth) are not read"));
    // The magic, version 3, one tensor, one entry of metadata, and then nothing.
    let header = [&b"GGUF"[..], &3_u32.to_le_bytes(), &1_u64.to_le_bytes(), &1_u64.to_le_bytes()].concat();
    fs::write(folder.path().join("cut.gguf"), header).unwrap();
    assert!(open("cut.gguf").contains("the file ends inside"));
}

#[test]
fn wrong_usage() {
    let [prompt] = prompts([4]);
    let file = ids_file(&prompt);
    for flags in [
        &["--block-size", "12"][..],
        &["--block-size", "512"],
        &["--kv-blocks", "1"],
        &["--chunk", "0"],
        &["--n", "0"],
        &["--temperature", "-1"],
        &["--top-p", "0"],
        &["--min-p", "1.5"],
        &["--sparse", "no-such-policy"],
        &["--prompt", "as well as ids"],
    ] {
        let said = refused(tiny("generate").arg("--ids-file").arg(file.path()).args(flags), 2);
        assert!(said.contains(flags[0]), "{flags:?}: {said}");
    }
}
