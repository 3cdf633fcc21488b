use clap::error::ErrorKind;
use insta::assert_snapshot;

use super::*;

fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
    let args = ["xtask"].iter().chain(args).map(OsString::from).collect();
    Cli::try_parse_with(&Registry::builtin(), keep_separator(args))
}

/// The first paragraph of the message that refuses `args`; exit code 2 is checked on the way.
fn refusal(args: &[&str]) -> String {
    let error = parse(args).expect_err(&format!("{args:?} was accepted"));
    assert_eq!(error.exit_code(), 2, "{args:?}: {error}");
    error.to_string().split("\n\n").next().unwrap().to_string()
}

#[test]
fn the_command_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_server_gets_the_flags_of_the_engine_as_they_were_given() {
    let line = "bench serve --plan restart --seed 3 -m m --quantize q4_k --sparse quest:page_budget=4 --select-on host --kv-dtype=f32 \
                --kv-memory 2MiB --reproducible --kv-tiers host=1GiB,disk=kv:1GiB --device=-d --json";
    let Command::Bench(args) = parse(&line.split_whitespace().collect::<Vec<_>>()).unwrap().command else {
        panic!("not bench");
    };
    let flags: Vec<&str> = args.engine_flags.iter().map(|flag| flag.to_str().unwrap()).collect();
    assert_snapshot!(flags.join(" "), @"--model=m --quantize=q4_k --sparse=quest:page_budget=4 --select-on=host --kv-dtype=f32 --kv-memory=2MiB --reproducible --kv-tiers=host=1GiB,disk=kv:1GiB --device=-d");
}

#[test]
fn test_passes_everything_on() {
    let passed = |args: &[&str]| match parse(&[&["test"], args].concat()).unwrap().command {
        Command::Test(args) => {
            args.args.into_iter().map(|arg| arg.into_string().unwrap()).collect::<Vec<_>>()
        }
        other => panic!("parsed {other:?} instead of test"),
    };
    assert_eq!(passed(&[]), [""; 0]);
    assert_eq!(passed(&["-p", "kvblock", "--", "--nocapture"]), ["-p", "kvblock", "--", "--nocapture"]);
    assert_eq!(passed(&["--", "--nocapture"]), ["--", "--nocapture"]);
    assert_eq!(parse(&["test", "--help"]).unwrap_err().kind(), ErrorKind::DisplayHelp);
}

#[test]
fn the_other_commands_parse() {
    for line in [
        "select --sparse streaming --tensors f.safetensors --json",
        "kernels",
        "kernels --emit out",
        "kernels --cases out --run chromium --kernel top_k",
        "bench",
        "bench kernels --out dir --json",
        "bench policies",
        "bench e2e --plan pools",
        "bench e2e",
        "bench serve --plan restart",
        "bench policies --plan turnover --json",
        "bench serve --url http://a/v1 --api-key-env KEY --form chat --slo ttft=1s,itl=50ms --rates 1,2.5 --seed 3",
        "ci",
        "generate hi",
        "doctor --self-test --json",
        "doctor --self-test --random 20 --seed 7",
    ] {
        parse(&line.split_whitespace().collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    assert_eq!(parse(&["bench", "gpu"]).unwrap_err().exit_code(), 2);
    assert_snapshot!(refusal(&["bench", "restart"]), @"error: bench restart has another name now: bench serve --plan restart");
    assert_eq!(parse(&["tset"]).unwrap_err().exit_code(), 2);
    assert_eq!(parse(&[]).unwrap_err().exit_code(), 2);
}
