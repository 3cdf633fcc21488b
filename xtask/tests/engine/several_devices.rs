//! Two devices that have nothing in common: Mesa's software driver and SwiftShader, which Debian's package of Chromium has.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::server::Server;
use crate::{golden_ids, ids_file, lines, output_ids, refused, tiny};

/// Both drivers, as the Vulkan loader takes them.
fn drivers() -> String {
    let mesa = fs::read_dir("/usr/share/vulkan/icd.d").unwrap().map(|entry| entry.unwrap().path());
    let is_lavapipe =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lvp_"));
    let lavapipe = mesa.into_iter().find(is_lavapipe).expect("Mesa's software driver is installed");
    let swiftshader = PathBuf::from("/usr/lib/chromium/vk_swiftshader_icd.json");
    assert!(swiftshader.exists(), "`cargo xtask test` sets Chromium up");
    format!("{}:{}", lavapipe.display(), swiftshader.display())
}

/// f32, since SwiftShader has no f16.
const DEVICES: [&str; 4] = ["--device", "0,1", "--kv-dtype", "f32"];

#[test]
fn two_drivers_have_the_layers_of_one_model() {
    let prompts = ids_file(&[golden_ids("prompt_0"), golden_ids("prompt_2")]);
    let generate = |flags: &[&str]| {
        let mut command = tiny("generate");
        command.args(["--max-tokens", "12", "--temperature", "0", "--chunk", "24", "--ids-file"]);
        command.arg(prompts.path()).args(DEVICES).args(flags).env("VK_DRIVER_FILES", drivers());
        command
    };
    let expected = [golden_ids("greedy_0"), golden_ids("greedy_2")].map(|ids| ids[..12].to_vec());
    for split in ["layers", "layers=1,2", "layers=2,1"] {
        let output = generate(&["--split", split]).output().unwrap();
        assert!(output.status.success(), "{split}: {}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let layers = said.lines().find(|line| line.starts_with("layers: ")).expect(&said);
        assert!(layers.contains(" on llvmpipe") && layers.contains(" on SwiftShader"), "{layers}");
        assert_eq!(output_ids(&lines(&output.stdout)), expected, "{split}");
    }
    let said = refused(&mut generate(&["--split", "layers=2,2"]), 1);
    assert!(said.contains("3 layers cannot be split over 2 devices as [2, 2]"), "{said}");
}

#[test]
fn two_drivers_serve_behind_one_address() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let command = command.args(["serve", "--no-disk-kv"]).args(DEVICES).env("VK_DRIVER_FILES", drivers());
    let server = Server::spawn(command);
    let ask = |prompt: usize| {
        let (ids, greedy) =
            (golden_ids(&format!("prompt_{prompt}")), golden_ids(&format!("greedy_{prompt}")));
        let body = json!({ "prompt": ids, "max_tokens": 12, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true });
        let reply = server.ask("POST", "/v1/completions", &body.to_string());
        let mut json: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).expect(&reply);
        assert_eq!(json["choices"][0]["token_ids"].take(), json!(greedy[..12]), "prompt {prompt}");
    };
    thread::scope(|scope| {
        for request in 0..8 {
            scope.spawn(move || ask(request % 4));
        }
    });
    let metrics = server.ask("GET", "/metrics", "");
    let generated = |engine: usize| {
        let name =
            format!("pagoda:generation_tokens_total{{model_name=\"tiny-llama\",engine=\"{engine}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.and_then(|count| count.trim().parse::<u32>().ok()).expect(&metrics)
    };
    let each = [0, 1].map(generated);
    assert!(each.iter().all(|tokens| *tokens > 0) && each.iter().sum::<u32>() == 96, "{each:?}");
}

#[test]
fn a_split_needs_devices_and_names_what_it_is_by() {
    let prompts = ids_file(&[[1, 2, 3]]);
    let mut alone = tiny("generate");
    let said = refused(alone.args(["--split", "layers", "--ids-file"]).arg(prompts.path()), 2);
    assert!(said.contains("--device <NAME>"), "{said}");
    let mut rows = tiny("generate");
    let said =
        refused(rows.args(["--device", "0,0", "--split", "rows", "--ids-file"]).arg(prompts.path()), 2);
    assert!(said.contains("`rows` is no split: give layers, or layers=N,N"), "{said}");
}
