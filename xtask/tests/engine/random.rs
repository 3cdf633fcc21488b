//! Models of random weights: no file, every type; and what `bench e2e` measures of them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{ids, ids_file, output_ids, refused, run, text, xtask};

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

/// The software driver's bindings have 128 MiB: 1,023 rows of the MLP, of which steps take half.
#[test]
fn steps_of_wide_models_fit_in_bindings() {
    let file = ids_file(&PROMPT.repeat(30));
    let mut command = xtask("generate");
    command
        .arg("--random")
        .arg(fixture("wide.ron"))
        .args(["--max-tokens", "3", "--ids-file"])
        .arg(file.path());
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let note = "steps take 512 tokens instead of 2048, whose buffers would not fit in the device's bindings of 128 MiB";
    assert!(said.contains(note), "{said}");
}

#[test]
fn text_needs_a_model_with_a_tokenizer() {
    let mut command = xtask("generate");
    let said = refused(command.args(["--random", "tiny-llama", "--prompt", "hi"]), 1);
    assert!(said.contains("tokenizer"), "{said}");
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/e2e").join(name)
}

/// Rows of `bench e2e`, in order, and what it says on stderr.
fn bench(args: &[&str]) -> (Vec<Value>, String) {
    let mut command = xtask("bench");
    command.arg("e2e").arg("--random").arg(fixture("shape.ron")).arg("--plan").arg(fixture("plan.ron"));
    let output = command.args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rows = text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    (rows, text(&output.stderr).to_owned())
}

fn number(row: &Value, pointer: &str) -> f64 {
    row.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer} of {row}"))
}

/// Serving eight together is what batching is for. How much it gains depends on what else the processor does: a software driver
/// decodes 1.8 to 3.0 times as much on an idle machine, so the long form alone, beside which nothing runs, asks for that.
#[test]
fn eight_streams_decode_in_the_steps_of_one() {
    let (rows, _) = bench(&["--quick"]);
    let streams: Vec<_> = rows.iter().map(|row| row["streams"].as_u64().unwrap()).collect();
    assert_eq!(streams, [1, 8]);
    for (row, streams) in rows.iter().zip([1.0, 8.0]) {
        let tokens_a_step = number(row, "/decode_tok_s") * number(row, "/step_ms") / 1e3;
        assert!((tokens_a_step - streams).abs() < 1e-6, "{tokens_a_step} tokens a step of {streams} streams");
    }
    if crate::is_long() {
        let ratio = number(&rows[1], "/decode_tok_s") / number(&rows[0], "/decode_tok_s");
        assert!(ratio >= 1.1, "8 streams decode {ratio} times what one does");
    }
}

#[test]
fn rows_hold_times_against_what_the_device_allows() {
    let (rows, said) = bench(&["--quick", "--filter", "1x"]);
    assert!(said.contains("1x4096+16: left out, the context length is 4096"), "{said}");
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(
        [row["streams"].as_u64(), row["prompt"].as_u64(), row["output"].as_u64()],
        [1, 32, 16].map(Some)
    );
    for positive in ["/load_s", "/prefill_tok_s", "/decode_tok_s", "/step_ms", "/roofline/of_prefill"] {
        assert!(number(row, positive) > 0.0, "{positive} of {row}");
    }
    // Two vocabularies and a layer, at 4.5 bits; of the embedding a decode step reads a row.
    let (vocab, layer) = (4096 * 512, 512 * (2 * 512 + 2 * 128 + 3 * 1024));
    let bytes = |elements: u32| f64::from(elements) * 4.5 / 8.0;
    let near = |got: f64, want: f64| (got / want - 1.0).abs() < 0.02;
    assert!(near(number(row, "/weight_bytes"), bytes(2 * vocab + layer)), "{row}");
    assert!(near(number(row, "/roofline/read_bytes"), bytes(vocab + layer)), "{row}");
    for phase in ["prefill", "decode"] {
        let kernels = row["kernels"][phase].as_array().unwrap();
        let matmul =
            kernels.iter().any(|time| time["kernel"].as_str().is_some_and(|k| k.starts_with("matmul")));
        assert!(matmul || kernels.is_empty(), "{phase} of {row}");
    }
}
