//! A driver that loses the device while the program runs: a Vulkan loader of the test's own, before that of the system, says so.
#![cfg(target_os = "linux")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};

use crate::server::Server;
use crate::{ids_file, prompts, text, tiny};

/// The system's Vulkan loader.
fn system_loader() -> PathBuf {
    // This process has it where the dynamic linker finds it, once a device is open.
    let _gpu = Gpu::open(&GpuOptions::new(Checks::On)).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut files = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    files.find(|path| path.contains("libvulkan.so")).expect("Vulkan is loaded").into()
}

/// A folder with the loader that loses devices while a file beside it is there.
fn losing_loader() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let source = [env!("CARGO_MANIFEST_DIR"), "tests", "engine", "driver", "vulkan.rs"]
            .iter()
            .collect::<PathBuf>();
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.args(["--edition", "2024", "--crate-type", "cdylib", "-O"]).arg(source);
        let made = rustc.arg("-o").arg(folder.path().join("libvulkan.so.1")).output().unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));
        folder
    });
    folder.path()
}

/// Puts the loader before the system's; the device is lost while `file` is there.
fn with_loader<'c>(command: &'c mut Command, file: &Path) -> &'c mut Command {
    command
        .env("LD_LIBRARY_PATH", losing_loader())
        .env("PAGODA_VULKAN", system_loader())
        .env("PAGODA_LOSE_DEVICE", file)
}

/// A server behind that loader.
fn server(file: &Path) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    Server::spawn(with_loader(command.args(["serve", "--no-disk-kv"]), file))
}

const BODY: &str =
    r#"{"prompt":[1,2,3],"max_tokens":4,"temperature":0,"ignore_eos":true,"return_token_ids":true}"#;

/// Part of an answer from its choices on.
fn choices(reply: &str) -> &str {
    assert!(reply.contains("200 OK"), "{reply}");
    reply.split_once(r#""choices""#).unwrap().1
}

#[test]
fn a_server_whose_device_stays_lost_ends_with_70() {
    let folder = tempfile::tempdir().unwrap();
    let lost = folder.path().join("lost");
    let server = server(&lost);
    choices(&server.ask("POST", "/v1/completions", BODY));
    fs::write(&lost, "").unwrap();
    let reply = server.ask("POST", "/v1/completions", BODY);
    assert!(reply.contains("HTTP/1.1 500") && reply.contains("server_error"), "{reply}");
    assert_eq!(server.ended().code(), Some(70));
}

#[test]
fn a_server_opens_a_lost_device_anew() {
    let folder = tempfile::tempdir().unwrap();
    let lost = folder.path().join("lost");
    let server = server(&lost);
    let before = server.ask("POST", "/v1/completions", BODY);
    fs::write(&lost, "once").unwrap();
    let after = server.ask("POST", "/v1/completions", BODY);
    assert!(!lost.exists(), "the device was not lost");
    let ids = |reply| choices(reply).split_once("token_ids").unwrap().1.split_once(']').unwrap().0.to_owned();
    assert_eq!(ids(&after), ids(&before));
    assert!(server.ask("GET", "/metrics", "").contains("\npagoda:device_recoveries_total"));
    server.signal("-TERM");
    assert!(server.ended().success());
}

#[test]
fn a_run_whose_device_is_lost_fails_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let lost = folder.path().join("lost");
    let file = ids_file(&prompts([40; 2]));
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "4"]);
    let whole = with_loader(&mut generate, &lost).output().unwrap();
    assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stderr));
    fs::write(&lost, "").unwrap();
    let ended = generate.output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("lost"), "{}", text(&ended.stderr));
}
