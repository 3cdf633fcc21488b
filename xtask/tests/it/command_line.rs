//! The program as scripts see it: exit codes, and what goes to stdout and stderr.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

fn xtask(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn wrong_usage_exits_with_2_and_says_why_on_stderr() {
    for args in [
        &["generate", "--prompt", "hi", "--max-tokens", "0"][..],
        &["generate"],
        &["score"],
        &["bench", "everything"],
        &["no-such-command"],
        &[],
    ] {
        let output = xtask(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{args:?}");
        assert!(!stderr(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn help_is_a_result() {
    let output = xtask(&["generate", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    for flag in
        ["--prompt", "--ids-file", "--max-tokens", "--sparse", "--kv-dtype", "--reproducible", "--json"]
    {
        assert!(stdout(&output).contains(flag), "{flag} is not in the help");
    }
}

/// The printed ids can be scored.
#[test]
fn a_text_becomes_the_ids_that_other_commands_take() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    fs::write(&file, "The capital of France is Paris.").unwrap();
    let ids = |args: &[&str]| -> Vec<u32> {
        let output = xtask(&[&["tokenize"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_str(stdout(&output)).unwrap()
    };
    let of_file = ids(&["--file", file.to_str().unwrap()]);
    assert!(of_file.len() > 5 && of_file == ids(&["The capital of France is Paris."]), "{of_file:?}");
    assert_eq!(xtask(&["tokenize"]).status.code(), Some(2));
    assert_eq!(xtask(&["tokenize", "--file", "no-such-file"]).status.code(), Some(1));
}

/// A small model with its reference, and with a reference of which one logit is another.
#[test]
fn doctor_compares_models_with_their_references() {
    let fixture = [env!("CARGO_MANIFEST_DIR"), "..", "models", "tests", "fixtures", "tiny-qwen3-moe-gguf"];
    let fixture: PathBuf = fixture.iter().collect();
    let folder = tempfile::tempdir().unwrap();
    for (copy, far) in [("right", false), ("wrong", true)] {
        let copy = folder.path().join(copy);
        fs::create_dir(&copy).unwrap();
        fs::copy(fixture.join("model.gguf"), copy.join("model.gguf")).unwrap();
        let mut golden = fs::read(fixture.join("golden.safetensors")).unwrap();
        if far {
            let logits =
                SafeTensors::deserialize(&golden).unwrap().tensor("logits_3").unwrap().data().as_ptr();
            let first = logits.addr() - golden.as_ptr().addr();
            golden[first..first + 4].copy_from_slice(&1e6f32.to_le_bytes());
        }
        fs::write(copy.join("golden.safetensors"), golden).unwrap();
    }
    let models = folder.path().to_str().unwrap();
    let output = xtask(&["doctor", "--models", models, "--device", "0", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let [right, wrong] = &report["adapters"][0]["models"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!(right["model"], "right/model.gguf");
    assert!(right["logits_f32"].as_f64().unwrap() <= 2e-4, "{right}");
    let [median, worst] = ["median_f16", "worst_f16"].map(|error| right[error].as_f64().unwrap());
    assert!((median..=1e-2).contains(&worst), "{right}");
    assert!(
        right["preemptions"].as_u64().unwrap() > 0 && right["cached_tokens"].as_u64().unwrap() > 0,
        "{right}"
    );
    assert_eq!((&right["wrong_tokens"], &right["rows"]), (&0.into(), &282.into()));
    assert!(wrong["logits_f32"].as_f64().unwrap() > 1.0, "{wrong}");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("1 models differ from their references"), "{said}");
}

#[test]
fn doctor_prints_one_json_object() {
    let output = xtask(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert!(stdout(&output).ends_with("}\n") && stdout(&output).lines().count() == 1);
    let tests_only = |name: &Value| {
        ["Redis server", "Node.js", "Chromium with its driver"].iter().any(|known| name == known)
    };
    let complete = report["missing"].as_array().unwrap().iter().all(tests_only);
    let usable = report["adapters"].as_array().unwrap().iter().any(|adapter| adapter["fault"].is_null());
    assert_eq!(output.status.code(), Some(if complete && usable { 0 } else { 1 }), "{}", stderr(&output));
}

#[test]
fn select_prints_the_blocks_as_one_json_object() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("qk.safetensors");
    let zeros = |numbers: usize| vec![0; numbers * size_of::<f32>()];
    let (q, k) = (zeros(2 * 4), zeros(32 * 4));
    let tensors = [
        ("q", TensorView::new(Dtype::F32, vec![2, 1, 4], &q).unwrap()),
        ("k", TensorView::new(Dtype::F32, vec![1, 32, 4], &k).unwrap()),
    ];
    std::fs::write(&file, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let file = file.to_str().unwrap();

    let output = xtask(&["select", "--sparse", "full:block_size=8", "--tensors", file, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut selected: Value = serde_json::from_str(stdout(&output)).unwrap();
    // A bound in floating point of what holds all the mass.
    let bound = selected.as_object_mut().and_then(|fields| fields.remove("bound")).and_then(|b| b.as_f64());
    assert!(bound.is_some_and(|bound| (0.999..=1.0).contains(&bound)), "{bound:?}");
    assert_eq!(selected, json!({"selected": [[[0, 1, 2, 3]]], "density": 1.0, "recall": 1.0}));

    let output = xtask(&["select", "--sparse", "full", "--tensors", "no-such-file"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    assert!(stderr(&output).contains("no-such-file"), "{}", stderr(&output));
}

#[test]
fn the_version_is_told() {
    let output = xtask(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output).trim(), concat!("cargo xtask ", env!("CARGO_PKG_VERSION")));
}

/// Whoever reads may stop: `xtask kernels | head -1`.
#[test]
fn a_broken_pipe_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("kernels")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

#[test]
fn models_are_listed_with_why_they_do_not_load() {
    let fixtures: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "models", "tests", "fixtures"].iter().collect();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), r#"{"model_type": "gpt2"}"#).unwrap();
    let [tiny, other] = [fixtures.join("tiny-llama"), folder.path().to_owned()];
    let output = xtask(&["models", "--json", tiny.to_str().unwrap(), other.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [loads, refused] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (&loads["family"], &loads["dtype"], &loads["context"]),
        (&"llama".into(), &"F32".into(), &4096.into())
    );
    assert!(loads["reason"].is_null() && loads["bytes"].as_u64().unwrap() > 100_000);
    assert!(refused["reason"].is_string(), "{refused}");
    // Nothing is cached for this user.
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .arg("models")
        .env("PAGODA_CACHE_DIR", folder.path().join("none"))
        .env("HF_HOME", folder.path().join("none"));
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), ""));
    assert!(stderr(&output).contains("no model is cached"), "{}", stderr(&output));
    assert_eq!(xtask(&["models", folder.path().join("none").to_str().unwrap()]).status.code(), Some(1));
}

#[test]
fn doctor_says_what_a_model_takes() {
    let fixture = [env!("CARGO_MANIFEST_DIR"), "..", "models", "tests", "fixtures", "tiny-llama"];
    let fixture: PathBuf = fixture.iter().collect();
    let report = |more: &[&str]| -> Value {
        let output = xtask(&[&["doctor", "--json", "--model", fixture.to_str().unwrap()], more].concat());
        serde_json::from_str::<Value>(stdout(&output)).unwrap()["checkpoint"].take()
    };
    let plain = report(&["--memory", "8MiB"]);
    // An f32 embedding of 128 x 64, 3 layers of 4 and 3 matrices, and 7 norms.
    let layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64;
    assert_eq!(plain["parameters"].as_u64(), Some(128 * 64 + 3 * layer + 7 * 64));
    assert_eq!(plain["weight_bytes"].as_u64(), plain["parameters"].as_u64().map(|elements| 4 * elements));
    // K and V of two heads of 16 in 3 layers, at f16: 384 bytes a token, and two blocks more.
    let kv = &plain["kv"][0];
    assert_eq!((&kv["dtype"], &kv["bytes"][0]), (&"f16".into(), &json!([4096, (4096 + 32) * 384])));
    assert_eq!(kv["fits_tokens"], 4096);
    assert!(plain["modes"].as_array().unwrap().iter().all(|mode| mode["needs"].is_null()), "{plain}");
    let tight = report(&["--memory", "1MB", "--quantize", "q8_0"]);
    assert!(tight["weight_bytes"].as_u64().unwrap() < plain["weight_bytes"].as_u64().unwrap() / 3, "{tight}");
    let fits = tight["kv"][0]["fits_tokens"].as_u64().unwrap();
    assert!((1000..3000).contains(&fits), "{tight}");
}

/// Every path that was asked for has its line, also behind one without a model.
#[test]
fn models_lists_all_paths_and_fails_where_one_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let tiny: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "models", "tests", "fixtures", "tiny-llama"].iter().collect();
    let list = |paths: &[&Path]| {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("models").args(paths).output().unwrap();
        let [out, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), out, said)
    };
    let (code, out, _) = list(&[&tiny]);
    assert_eq!((code, out.lines().count()), (Some(0), 1), "{out}");
    let (code, out, said) = list(&[Path::new("no-such-folder"), folder.path(), &tiny]);
    let lines: Vec<&str> = out.lines().collect();
    let [missing, empty, loads] = lines[..] else { panic!("{out}") };
    assert!(
        missing.starts_with("no-such-folder ") && missing.contains("does not load: No such file"),
        "{missing}"
    );
    assert!(empty.contains("does not load: there is no config.json and no GGUF file in it"), "{empty}");
    assert!(loads.contains("llama") && loads.ends_with("4096 tokens"), "{loads}");
    assert_eq!((code, said.trim()), (Some(1), "error: 2 of 3 paths have no model"));
}
