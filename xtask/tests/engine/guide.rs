//! The commands of the user's guide, run by a shell as they stand there: with a tiny model, and behind `PAGODA_LONG_TESTS=1`
//! those that name no model with the default one.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use xtask::tree;

use crate::{habits, is_long, text};

/// File of a report of policies that takes seconds.
const REPORT_FILE: &str = "tiny.ron";
const REPORT: &str = "Report(
    policies: [\"quest:page_budget={30%/16}\"],
    lengths: [256],
    kv_dtypes: [f16],
    scored: 4,
    answer: 4,
    tasks: [pass_key],
    samples: 1,
)";

/// Names that the guide has for a model, a folder, sizes and lengths of a real machine.
fn here(command: &str, folder: &Path) -> String {
    let model = habits::MODEL.path().display().to_string();
    let folder = folder.display().to_string();
    [
        ("hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", model.as_str()),
        ("hf:Qwen/Qwen3-0.6B", &model),
        ("/var/tmp", &folder),
        ("GiB", "MiB"),
        ("4096", "48"),
    ]
    .into_iter()
    .fold(command.to_owned(), |command, (there, here)| command.replace(there, here))
}

/// The lines of the guide's blocks for a shell, whole where they go on in the next.
fn commands() -> Vec<String> {
    let guide = fs::read_to_string(tree::root().join("docs/guide.md")).unwrap().replace("\\\n", " ");
    let blocks = guide.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks.flat_map(str::lines).map(str::to_owned).collect()
}

/// A shell in which `cargo xtask` and `pagoda` are the program, and a line with the flags that this machine needs.
fn shell(line: &str, folder: &Path, default_model: bool) -> Command {
    let name = line
        .trim_start_matches("cargo xtask ")
        .trim_start_matches("pagoda ")
        .split_whitespace()
        .next()
        .unwrap();
    let mut more = String::new();
    if !line.contains("--model") && !default_model && ["run", "score", "tokenize", "serve"].contains(&name) {
        more += &format!(" --model {}", habits::MODEL.path().display());
    }
    match name {
        "run" => more += " --max-tokens 4",
        "serve" => more += " --port 0 --kv-memory 16MiB",
        _ => {}
    }
    let mut line = here(line, folder);
    if name == "bench" && !default_model {
        line += &format!(" --model {} --plan {REPORT_FILE}", habits::MODEL.path().display());
    }
    let line = line.replacen(name, &format!("{name}{more}"), 1);
    let mut shell = Command::new("sh");
    // `run` is `generate` in the program of a checkout.
    let programs = "cargo() { shift; exec \"$PROGRAM\" \"$@\"; }\n\
                    pagoda() { [ \"$1\" != run ] || { shift; set -- generate \"$@\"; }; exec \"$PROGRAM\" \"$@\"; }";
    shell.arg("-ec").arg(format!("{programs}\n{line}"));
    shell.current_dir(folder).env("PROGRAM", env!("CARGO_BIN_EXE_xtask")).env("PAGODA_INSTALL", "never");
    if !default_model {
        shell.env("PAGODA_CACHE_DIR", folder.join("cache")).env("HF_HOME", folder.join("hub"));
    }
    // As in a terminal that was opened on the machine itself, or over the network.
    shell.env_remove("XDG_RUNTIME_DIR").env_remove("NODEVICE_SELECT");
    shell
}

/// Starts a server, and ends it once it says that it serves.
fn serves(mut shell: Command) {
    let mut child = shell.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let ready = lines.any(|line| line.starts_with("serving "));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ready, "{shell:?}");
}

fn run_all(lines: impl Iterator<Item = String>, default_model: bool) {
    let folder = TempDir::new().unwrap();
    fs::write(
        folder.path().join("book.txt"),
        "It was a bright cold day in April, and the clocks were striking 13.\n",
    )
    .unwrap();
    fs::write(folder.path().join(REPORT_FILE), REPORT).unwrap();
    for line in lines {
        let mut shell = shell(&line, folder.path(), default_model);
        if line.starts_with("pagoda serve") {
            serves(shell);
            continue;
        }
        let Output { status, stdout, stderr } = shell.output().unwrap();
        let told = text(&stderr);
        assert!(status.success(), "{line}: {told}");
        assert!(!told.contains("XDG_RUNTIME_DIR"), "{line}: {told}");
        let written =
            line.split_once("> ").map(|(_, file)| fs::read(folder.path().join(file.trim())).unwrap());
        // Where nothing is cached, `models` says so on stderr.
        let silent = written.map_or(stdout.is_empty() && told.is_empty(), |written| written.is_empty());
        assert!(!silent, "{line} printed nothing");
    }
}

#[test]
fn its_commands_run() {
    let commands = commands();
    assert!(commands.len() >= 10, "{commands:#?}");
    run_all(commands.into_iter(), false);
}

#[test]
fn its_commands_run_with_the_default_model() {
    if !is_long() {
        return;
    }
    run_all(commands().into_iter().filter(|line| !line.contains("hf:")), true);
}
