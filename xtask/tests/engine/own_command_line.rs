//! A policy of one's own on the command line, as the example registers it.

#[path = "../../examples/own_command_line.rs"]
mod example;

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use serde_json::Value;
use sparse_select::Registry;
use xtask::cli::Cli;

use crate::{golden_ids, ids_file, tiny_llama};

/// Runs a command in this process.
fn run(registry: &Registry, args: &[&str]) -> Result<(), String> {
    let args = ["xtask"].iter().chain(args);
    let cli = Cli::try_parse_with(registry, args).map_err(|error| error.to_string())?;
    xtask::run(cli.command, registry).map_err(|error| format!("{error:#}"))
}

/// The logits of the last token, after decode steps under a policy.
fn logits(registry: &Registry, policy: &str, folder: &Path) -> Vec<u8> {
    let ids = ids_file(&golden_ids("prompt_1").repeat(8)[..96].to_vec());
    let out = folder.join("logits.safetensors");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (model, ids, out_flag) = (text(&tiny_llama()), text(ids.path()), text(&out));
    let flags = ["--decode-from", "32", "--block-size", "8", "--last", "1", "--logits-out", &out_flag];
    let score = ["score", "--model", &model, "--ids-file", &ids, "--sparse", policy];
    run(registry, &[&score[..], &flags].concat()).unwrap();
    fs::read(out).unwrap()
}

#[test]
fn a_registered_policy_runs_by_its_name() {
    let (own, builtin) = (example::registry().unwrap(), Registry::builtin());
    let folder = tempfile::tempdir().unwrap();
    let full = logits(&own, "full", folder.path());
    assert_eq!(logits(&own, "strided:every=1,block_size=8", folder.path()), full);
    assert_ne!(logits(&own, "strided:every=4,block_size=8", folder.path()), full);
    let score = ["score", "--ids-file", "ids.json", "--sparse", "strided"];
    let refused = run(&builtin, &score).unwrap_err();
    assert!(refused.contains("valid names: full") && !refused.contains("nsa strided"), "{refused}");
}

#[test]
fn a_registered_policy_generates() {
    let (own, builtin) = (example::registry().unwrap(), Registry::builtin());
    let (model, ids) = (tiny_llama(), ids_file(&golden_ids("prompt_1")));
    let [model, ids] = [&model, ids.path()].map(|path| path.to_str().unwrap());
    let generate = ["generate", "--model", model, "--ids-file", ids, "--max-tokens", "4", "--json"];
    let strided =
        [&generate[..], &["--sparse", "strided:every=2,block_size=8", "--block-size", "8"]].concat();
    run(&own, &strided).unwrap();
    assert!(run(&builtin, &strided).unwrap_err().contains("valid names: full"));
}

/// Every subcommand that has `--sparse`, with what it needs beside it.
const SPARSE: [(&str, &[&str]); 6] = [
    ("generate", &["--prompt", "hi"]),
    ("chat", &[]),
    ("serve", &[]),
    ("score", &["--ids-file", "ids.json"]),
    ("select", &["--tensors", "qk.safetensors"]),
    ("bench", &[]),
];

#[test]
fn every_command_takes_registered_policies() {
    let command = Cli::command();
    let takes = |command: &&clap::Command| command.get_arguments().any(|arg| arg.get_id() == "sparse");
    let takers: Vec<_> = command.get_subcommands().filter(takes).map(|command| command.get_name()).collect();
    assert_eq!(takers, SPARSE.map(|(name, _)| name));
    let own = example::registry().unwrap();
    for (name, needed) in SPARSE {
        let args = [&["xtask", name][..], needed, &["--sparse", "strided:every=3"]].concat();
        Cli::try_parse_with(&own, &args).unwrap();
        let refused = Cli::try_parse_with(&Registry::builtin(), &args).unwrap_err().to_string();
        assert!(refused.contains("valid names: full"), "{name}: {refused}");
        // Without a registry there is no policy at all, published ones included.
        let args = [&args[..args.len() - 1], &["full"]].concat();
        let refused = Cli::command().try_get_matches_from(args).unwrap_err().to_string();
        assert!(refused.contains("no registry of policies is given"), "{name}: {refused}");
    }
}

#[test]
fn a_registered_policy_selects_on_tensors_of_a_model() {
    let own = example::registry().unwrap();
    let (model, ids, folder) =
        (tiny_llama(), ids_file(&golden_ids("prompt_1")), tempfile::tempdir().unwrap());
    let tensors = folder.path().join("qk.safetensors");
    let [model, ids, file] = [&model, ids.path(), &tensors].map(|path| path.to_str().unwrap());
    run(&own, &["score", "--model", model, "--ids-file", ids, "--block-size", "8", "--dump-qk", file])
        .unwrap();
    run(&own, &["select", "--tensors", file, "--sparse", "strided:every=2,block_size=8"]).unwrap();
    let spec = "strided:every=2,block_size=4".parse().unwrap();
    let outcome = xtask::select::outcome(&fs::read(&tensors).unwrap(), &spec, &own).unwrap();
    let blocks = &outcome.selected()[0][0];
    assert!(blocks.len() > 1 && blocks[..blocks.len() - 1].iter().all(|block| block % 2 == 0), "{blocks:?}");
}

#[test]
fn a_registered_policy_is_measured_beside_others() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ron");
    let text = r#"(policies: ["full", "strided:every=2"], chunk: 32, texts: [(tokens: 67, decode_from: 64)], needles: [])"#;
    fs::write(&plan, text).unwrap();
    let [plan, out] = [&plan, folder.path()].map(|path| path.to_str().unwrap());
    run(&example::registry().unwrap(), &["bench", "policies", "--plan", plan, "--out", out]).unwrap();
    let cells = fs::read_to_string(folder.path().join("policies.jsonl")).unwrap();
    let cells: Vec<Value> = cells.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let density = |policy: &str| {
        let cell = cells
            .iter()
            .find(|cell| cell["policy"] == policy)
            .unwrap_or_else(|| panic!("{policy}: {cells:?}"));
        cell["decode"]["density"].as_f64().unwrap()
    };
    // Of the five blocks, the first, third and last.
    assert!(density("full") == 1.0 && density("strided:every=2") < 0.7, "{cells:?}");
}

#[test]
fn plans_name_registered_policies() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ron");
    let text = r#"(policies: ["full", "strided", "guess"], chunk: 32, texts: [(tokens: 2, decode_from: 1)], needles: [])"#;
    fs::write(&plan, text).unwrap();
    let bench = ["bench", "policies", "--plan", plan.to_str().unwrap()];
    // Refused before a model is opened: there is none of this name.
    let with_model = [&bench[..], &["--model", "no-such-model"]].concat();
    let refused = run(&example::registry().unwrap(), &with_model).unwrap_err();
    assert!(refused.starts_with("policy guess:") && refused.contains("strided"), "{refused}");
    assert!(run(&Registry::builtin(), &with_model).unwrap_err().starts_with("policy strided:"));
}
