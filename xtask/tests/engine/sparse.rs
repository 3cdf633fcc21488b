//! `--sparse` with the tiny Llama.

use serde_json::Value;

use crate::{golden_ids, ids_file, output_ids, run, tiny};

/// Scores the prompt of 200 tokens in f32 KV, the last 100 as decode steps.
fn score(flags: &[&str]) -> Value {
    let file = ids_file(&golden_ids("prompt_3"));
    let mut score = tiny("score");
    score.arg("--ids-file").arg(file.path()).args(["--kv-dtype", "f32", "--decode-from", "100"]).args(flags);
    run(&mut score).remove(0)
}

fn nll(scored: &Value) -> f64 {
    scored["mean_nll"].as_f64().unwrap()
}

fn density(line: &Value) -> f64 {
    line["sparse"]["density"].as_f64().unwrap()
}

#[test]
fn everything_selected_scores_as_full_attention_does() {
    let full = score(&[]);
    assert_eq!(density(&full), 1.0);
    for spec in ["gsa:sparse_ratio=1,min_blocks=1", "gsa:scoring=mean_k,sparse_ratio=1,min_blocks=1"] {
        let all = score(&["--sparse", spec]);
        assert_eq!(all["sparse"]["policy"], spec);
        assert_eq!(density(&all), 1.0);
        assert!(
            ((nll(&all) - nll(&full)) / nll(&full)).abs() <= 1e-5,
            "{spec}: {} {}",
            nll(&all),
            nll(&full)
        );
    }
}

#[test]
fn every_policy_runs_and_says_what_it_attended() {
    for spec in [
        "streaming:sink=1,recent=4",
        "vertical-slash",
        "gsa",
        "gsa:scoring=mean_k",
        "gsa-ucm:block_size=16,min_topk=1,max_topk=1,seg_prefill_threshold=0",
        "esa:block_size=16",
        "kvcomp:block_size=16,topk_tokens=96,length_threshold=96",
        "xattn:block_size=16,threshold=0.5",
        "quest:page_budget=4",
        "dsa:block_size=16,index_topk=32",
        "nsa:block_size=16,topk=4,window_size=20",
    ] {
        let scored = score(&["--sparse", spec, "--chunk", "32"]);
        let density = density(&scored);
        assert!(density > 0.0 && density < 1.0, "{spec}: density {density}");
        assert!(nll(&scored).is_finite(), "{spec}");
        assert_eq!(scored["sparse"]["bound"].is_number(), spec.starts_with("quest"), "{spec}");
    }
}

#[test]
fn a_bound_that_is_asked_for_holds() {
    let scored = score(&["--sparse", "quest:mass=0.99,dense_layers=0"]);
    assert!(scored["sparse"]["bound"].as_f64().unwrap() >= 0.99);
}

#[test]
fn preemption_does_not_change_what_is_attended() {
    let prompts: Vec<Vec<u32>> = ["prompt_3", "prompt_2", "prompt_3"].map(golden_ids).to_vec();
    let file = ids_file(&prompts);
    let serve = |flags: &[&str]| {
        let mut generate = tiny("generate");
        generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "24", "--kv-dtype", "f32"]);
        run(generate.args(["--sparse", "quest:page_budget=4", "--reproducible"]).args(flags))
    };
    let wide = serve(&[]);
    assert!(wide.iter().take(1).all(|line| density(line) < 1.0), "{wide:?}");
    // 200, 64 and 200 tokens of prompt need 33 blocks; half of that runs them one after the other.
    let tight = serve(&["--kv-blocks", "18", "--preempt", "swap"]);
    assert_eq!(output_ids(&tight), output_ids(&wide));
}

#[test]
fn a_certificate_is_made_for_those_who_ask() {
    let file = ids_file(&[golden_ids("prompt_3")]);
    let generate = |flags: &[&str]| {
        let mut generate = tiny("generate");
        generate.arg("--ids-file").arg(file.path()).args([
            "--max-tokens",
            "8",
            "--sparse",
            "quest:page_budget=4",
        ]);
        run(generate.args(flags)).remove(0)
    };
    let (plain, certified) = (generate(&[]), generate(&["--certify"]));
    assert!(plain["sparse"]["bound"].is_null(), "{plain}");
    assert!((0.0..1.0).contains(&certified["sparse"]["bound"].as_f64().unwrap()), "{certified}");
    assert_eq!(output_ids(&[plain]), output_ids(&[certified]));
}

#[test]
fn prefixes_of_others_are_selected_from_as_on_the_host() {
    // The second and third prompt find blocks of the first, whose last ones no kernel had digested when it ended.
    let first = golden_ids("prompt_3");
    let longer: Vec<u32> = first.iter().chain(&golden_ids("prompt_2")).copied().collect();
    let file = ids_file(&[first.clone(), longer, first[..180].to_vec()]);
    let serve = |place: &str| {
        let mut generate = tiny("generate");
        generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "30", "--kv-dtype", "f32"]);
        generate.args(["--sparse", "quest:page_budget=4,dense_layers=0", "--certify", "--reproducible"]);
        // One sequence at a time.
        run(generate.args(["--kv-blocks", "20", "--select-on", place]))
    };
    let (device, host) = (serve("device"), serve("host"));
    assert!(device.iter().any(|line| line["cached_tokens"].as_u64().unwrap() > 100), "{device:?}");
    assert_eq!(output_ids(&device), output_ids(&host));
    for (device, host) in device.iter().zip(&host) {
        assert_eq!(density(device), density(host));
        let bounds = [device, host].map(|line| line["sparse"]["bound"].as_f64().unwrap());
        assert!(bounds[0] <= bounds[1] && bounds[0] >= bounds[1] * 0.99 - 1e-9, "{bounds:?}");
    }
}
