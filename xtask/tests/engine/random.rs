//! Models of random weights: no file, every type.

use crate::{ids, ids_file, output_ids, refused, run, xtask};

const PROMPT: [u32; 20] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4];

#[test]
fn random_models_continue_ids_and_score_them() {
    let file = ids_file(&PROMPT);
    let generate = |spec: &str| {
        let mut command = xtask("generate");
        command.args(["--random", spec, "--max-tokens", "6", "--ids-file"]).arg(file.path());
        run(&mut command)
    };
    let lines = generate("tiny-llama:q4_k");
    assert_eq!(ids(&lines[0]["output_ids"]).len(), 6);
    assert_eq!((&lines[0]["text"], &lines[0]["finish_reason"]), (&"".into(), &"length".into()));
    assert_eq!(output_ids(&lines), output_ids(&generate("tiny-llama:q4_k,seed=0")));
    assert_ne!(output_ids(&lines), output_ids(&generate("tiny-llama:q4_k,seed=1")));

    let mut command = xtask("score");
    command.args(["--random", "tiny-moe:mxfp4", "--ids-file"]).arg(file.path());
    let nll = run(&mut command)[0]["mean_nll"].as_f64().unwrap();
    // Logits have a deviation of about 1: the mean over 19 tokens of 512 is near ln 512 + 1/2.
    assert!((5.5..8.0).contains(&nll), "mean nll {nll}");
}

#[test]
fn text_needs_a_model_with_a_tokenizer() {
    let mut command = xtask("generate");
    let said = refused(command.args(["--random", "tiny-llama", "--prompt", "hi"]), 1);
    assert!(said.contains("tokenizer"), "{said}");
}
