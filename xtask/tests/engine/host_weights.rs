//! `--weights-on-gpu` with the tiny Llama: the tokens of a run that has all weights on the device.

use insta::assert_snapshot;
use pagoda::{Demand, Engine, EngineOptions, Model, Request};

use crate::tiers::serve;
use crate::{ids_file, output_ids, prompts, refused, text, tiny, tiny_llama, usual};

/// The fewest bytes for weights, as the refusal of fewer says.
fn least() -> String {
    let file = ids_file(&[[1, 2, 3]]);
    let mut generate = tiny("generate");
    let said = refused(generate.arg("--ids-file").arg(file.path()).args(["--weights-on-gpu", "1KB"]), 1);
    let (before, _) = said.split_once(" are needed").unwrap_or_else(|| panic!("{said}"));
    before.rsplit(' ').next().expect("a split has a last part").to_owned()
}

#[test]
fn tokens_do_not_depend_on_where_weights_lie() {
    let lists = prompts([400, 190, 40]);
    let least = least();
    let placed = ["--weights-on-gpu", &least, "--reproducible"];
    let roomy = serve(&lists, &["--reproducible"]);
    // Prompts share a pool that does not hold all; in a smaller one the first goes through the ring.
    let pools = [
        &["--kv-blocks", "36", "--chunk", "64", "--preempt", "swap"][..],
        &["--kv-blocks", "24", "--chunk", "64", "--kv-tiers", "host=1MiB"],
        &[],
        &["--kv-blocks", "24", "--chunk", "64", "--kv-tiers", "host=1MiB", "--no-host-buffers"],
    ];
    for &more in usual(2, &pools) {
        let served = serve(&lists, &[&placed, more].concat());
        assert_eq!(output_ids(&served), output_ids(&roomy), "{more:?}");
    }
    let quest = ["--sparse", "quest:page_budget=4"];
    let selected = serve(&lists, &[&placed[..], &quest].concat());
    let resident = serve(&lists, &[&["--reproducible"][..], &quest].concat());
    assert_eq!(output_ids(&selected), output_ids(&resident));
}

#[test]
fn a_line_says_what_lies_where() {
    let file = ids_file(&[[1, 2, 3]]);
    let mut generate = tiny("generate");
    let output = generate.arg("--ids-file").arg(file.path()).args(["--weights-on-gpu", &least()]).output();
    let output = output.unwrap();
    let said = text(&output.stderr).lines().find(|line| line.starts_with("weights: "));
    assert_snapshot!(said.unwrap_or_default(), @"weights: 324.9 KiB on the device, 435.0 KiB in host memory (3 of 3 layers), which every step reads over the link: prefills hide it, decoding waits for it");
}

#[test]
fn totals_count_what_steps_bring() {
    let model = Model::open(tiny_llama()).unwrap();
    let options = EngineOptions::new().demand(Demand::one(64)).weights_on_gpu(least().parse().ok());
    let mut engine = Engine::open(model, options).unwrap();
    engine.submit(Request::new(vec![1, 2, 3]).max_tokens(4)).unwrap();
    while engine.has_work() {
        engine.step().unwrap();
    }
    let of_step = engine.decoder().weight_placement().unwrap().host_bytes;
    let totals = engine.snapshot().totals;
    assert!(totals.steps >= 4 && of_step > 0, "{totals:?}");
    assert_eq!(totals.streamed_weight_bytes, totals.steps * of_step);
}
