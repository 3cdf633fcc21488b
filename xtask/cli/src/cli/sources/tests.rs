use std::fs;

use insta::assert_snapshot;
use pagoda::Registry;

use super::*;
use crate::cli::{Cli, Command, GenerateArgs, ServeArgs, Shared};

/// Reads a line with variables such as `PORT=1` and the text of a file.
fn read(line: &str, variables: &[&str], file: &str) -> Result<Cli, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    fs::write(&path, file).unwrap();
    let variable = |text: &&str| {
        let (name, value) = text.split_once('=').unwrap();
        (format!("PAGODA_{name}").into(), value.into())
    };
    let sources = Sources { variables: variables.iter().map(variable).collect(), file: Some(path.clone()) };
    let args = std::iter::once("pagoda").chain(line.split_whitespace()).map(Into::into).collect();
    Cli::parse_with(&Registry::builtin(), args, &sources).map_err(|error| {
        let told = error.to_string().replace(path.to_str().unwrap(), "config.toml");
        told.split("\n\n").next().unwrap().trim_end().to_owned()
    })
}

fn serve(line: &str, variables: &[&str], file: &str) -> ServeArgs {
    match read(&format!("serve {line}"), variables, file).unwrap().command {
        Command::Shared(Shared::Serve(args)) => *args,
        other => panic!("{other:?}"),
    }
}

fn run(line: &str, variables: &[&str], file: &str) -> GenerateArgs {
    match read(&format!("run {line}"), variables, file).unwrap().command {
        Command::Run(args) => *args,
        other => panic!("{other:?}"),
    }
}

fn refusal(line: &str, variables: &[&str], file: &str) -> String {
    read(line, variables, file).unwrap_err()
}

#[test]
fn flags_prevail_over_variables_and_these_over_a_file() {
    assert_eq!(serve("", &[], "").port, 8080);
    assert_eq!(serve("", &[], "port = 1").port, 1);
    assert_eq!(serve("", &["PORT=2"], "port = 1").port, 2);
    assert_eq!(serve("--port 3", &["PORT=2"], "port = 1").port, 3);
    assert_eq!(serve("", &["PORT="], "port = 1").port, 1, "an empty variable is as none");
}

#[test]
fn switches_are_undone_at_every_level() {
    let is_on = |line: &str, variables: &[&str], file: &str| serve(line, variables, file).engine.reproducible;
    assert!(!is_on("", &[], "") && is_on("", &[], "reproducible = true"));
    assert!(!is_on("", &["REPRODUCIBLE=false"], "reproducible = true"));
    assert!(is_on("", &["REPRODUCIBLE=1"], "reproducible = false"));
    assert!(is_on("--reproducible", &["REPRODUCIBLE=0"], "reproducible = false"));
    assert!(!is_on("--reproducible=false", &["REPRODUCIBLE=yes"], "reproducible = true"));
    assert!(is_on("--reproducible=true", &[], ""));
}

#[test]
fn what_conflicts_with_a_higher_level_is_left_out() {
    let told = |args: ServeArgs| (args.engine.quiet, args.engine.verbose);
    assert_eq!(told(serve("--verbose", &[], "quiet = true")), (false, true));
    assert_eq!(told(serve("--verbose", &["QUIET=true"], "")), (false, true));
    assert_eq!(told(serve("", &["QUIET=true"], "verbose = true")), (true, false));
    assert_eq!(told(serve("--quiet=false", &[], "quiet = true\n[serve]\nverbose = true")), (false, true));
    assert_eq!(told(serve("", &["QUIET=off"], "verbose = true")), (false, true));
    assert_eq!(run("-p --quiet=false", &[], "").prompt, ["--quiet=false"]);
    let model = |args: ServeArgs| (args.engine.random.is_some(), args.engine.model.is_some());
    assert_eq!(model(serve("--model a", &[], "random = 'tiny-llama'")), (false, true));
    assert_eq!(model(serve("--random tiny-llama", &["MODEL=a"], "")), (true, false));
    assert_eq!(model(serve("", &["RANDOM=tiny-llama"], "model = 'a'")), (true, false));
    // Kinds of input exclude each other as a group.
    let args = run("Hi", &["PROMPT=a"], "prompt = 'b'\nsystem = 'c'");
    assert_eq!((args.text.as_deref(), args.prompt.len(), args.system.as_deref()), (Some("Hi"), 0, Some("c")));
    assert_eq!(run("", &["PROMPT=a"], "messages = 'm.json'").prompt, ["a"]);
}

#[test]
fn tables_are_of_one_command() {
    let file = "max-tokens = 1\nport = 1\nstop = ['a', 'b']\n[run]\nmax_tokens = 2\n[serve]\nport = 2\n[chat]\nmax-tokens = 3";
    let args = run("Hi", &[], file);
    assert_eq!((args.max_tokens, args.stop.as_slice()), (2, &["a".to_owned(), "b".to_owned()][..]));
    assert_eq!(serve("", &[], file).port, 2);
    // Another name of the same command and of the same flag.
    assert_eq!(run("Hi", &[], "[generate]\nn-predict = 4").max_tokens, 4);
    let args = serve("", &[], "allowed-hosts = ['a', 'b']");
    assert_eq!(args.allowed_hosts.unwrap(), ["a", "b"]);
    assert!(matches!(
        read("bench serve", &[], "[bench]\nrates = [1, 2.5]").unwrap().command,
        Command::Bench(_)
    ));
}

#[test]
fn a_named_file_takes_the_place_of_the_usual_one() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.toml");
    fs::write(&other, "port = 5").unwrap();
    assert_eq!(serve(&format!("--config {}", other.display()), &[], "host = '0.0.0.0'\nport = 1").port, 5);
    let none = refusal("serve --config none.toml", &[], "");
    assert_snapshot!(none, @"error: none.toml: cannot be read: No such file or directory (os error 2)");
}

#[test]
fn what_is_wrong_names_its_source() {
    let told = [
        refusal("serve", &[], "host = 'a'\n\n[serve]\nports = 1"),
        refusal("chat", &[], "# a\nprot = 1"),
        refusal("chat", &[], "[sreve]\nport = 1"),
        refusal("serve", &[], "port = 'x'"),
        refusal("serve", &[], "port = 1970-01-01"),
        refusal("serve", &[], "port = [1, 2]"),
        refusal("serve", &[], "config = 'b.toml'"),
        refusal("doctor", &[], "install = true"),
        refusal("serve", &[], "quiet = true\nverbose = true"),
        refusal("serve", &[], "port = "),
        refusal("serve", &["PORT=x"], "port = 1"),
        refusal("serve", &["REPRODUCIBLE=maybe"], ""),
        refusal("serve --port x", &["PORT=y"], "port = 'z'"),
        refusal("serve --quiet --verbose", &[], ""),
    ];
    assert_snapshot!(told.join("\n"), @"
    error: config.toml:4: serve has no key `ports`; did you mean `port`?
    error: config.toml:2: no command has a key `prot`; did you mean `port`?
    error: config.toml:2: there is no command `sreve`; did you mean `serve`?
    error: config.toml:1: invalid value 'x' for '--port <N>': invalid digit found in string
    error: config.toml:1: `port` must be a text, a number, true, false, or a list of these
    error: config.toml:1: the argument '--port <N>' cannot be used multiple times
    error: config.toml:1: a file of flags names no other one
    error: config.toml:1: `install` is given on the command line alone
    error: config.toml:2: the argument '--quiet' cannot be used with '--verbose'
    error: config.toml:1: string values must be quoted, expected literal string
    error: PAGODA_PORT: invalid value 'x' for '--port <N>': invalid digit found in string
    error: PAGODA_REPRODUCIBLE: invalid value 'maybe' for '--reproducible': value was not a boolean
    error: invalid value 'x' for '--port <N>': invalid digit found in string
    error: the argument '--quiet' cannot be used with '--verbose'
    ");
}

#[test]
fn the_help_of_switches_has_no_values() {
    let help = refusal("run --help", &[], "");
    assert!(!help.contains("=<"), "{help}");
    // Installing is asked for each time.
    assert!(matches!(
        read("doctor", &["INSTALL=yes"], "").unwrap().command,
        Command::Shared(Shared::Doctor(args)) if !args.install
    ));
}
