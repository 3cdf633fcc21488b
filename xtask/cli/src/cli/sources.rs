//! Arguments that a command line leaves out, from the environment and from a file.
//!
//! A flag prevails over the variable `PAGODA_FLAG` of the environment, which prevails over the key of the file. A value that
//! conflicts with one of a higher source is left out, as is one that a higher source gives too.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use self::file::File;
use super::tips::with_tip;

mod file;

/// Subcommands whose arguments may come from other sources, by all their names.
pub const COMMANDS: [&str; 10] =
    ["run", "generate", "chat", "serve", "pull", "models", "score", "tokenize", "doctor", "bench"];

/// Arguments that are read from the command line only: those that name a source or must be repeated in each call.
const FLAGS_ONLY: [&str; 4] = ["config", "help", "version", "install"];

/// Values of a switch that is off, as `BoolishValueParser` reads them.
const OFF: [&str; 6] = ["n", "no", "f", "false", "off", "0"];

/// Name of the argument for a file.
const CONFIG: &str = "config";

/// Help text of the argument that takes a file of flags.
const HELP: &str = "File with flags as keys, such as port = 8000, for all commands or below [COMMAND]; by default \
                    pagoda/config.toml in the user's folder of configurations. Flags and variables such as PAGODA_PORT prevail";

/// Sources of arguments in addition to the command line.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Variables of the environment.
    pub variables: BTreeMap<OsString, OsString>,
    /// File that is read if it exists and no flag names another one.
    pub file: Option<PathBuf>,
}

impl Sources {
    /// The environment of this process, and `pagoda/config.toml` in the user's folder of configurations.
    #[must_use]
    pub fn of_this_process() -> Self {
        let file = dirs::config_dir().map(|folder| folder.join("pagoda/config.toml"));
        Self { variables: std::env::vars_os().collect(), file }
    }
}

/// Adds the flag `--config` to the subcommands of [`COMMANDS`], and lets their switches take a value.
#[must_use]
pub fn with_sources(command: Command) -> Command {
    command.mut_subcommands(|command| match COMMANDS.contains(&command.get_name()) {
        true => leaves(command, &|leaf| {
            leaf.arg(
                Arg::new(CONFIG)
                    .long(CONFIG)
                    .value_name("FILE.toml")
                    .value_parser(clap::value_parser!(PathBuf))
                    .help(HELP),
            )
        }),
        false => command,
    })
}

/// Applies `change` to the command if it has no subcommands, and otherwise to every subcommand that has none.
fn leaves(command: Command, change: &dyn Fn(Command) -> Command) -> Command {
    if !command.has_subcommands() {
        return change(command);
    }
    command.mut_subcommands(|command| leaves(command, change))
}

/// Parses `args`, and takes flags that `args` lacks from `sources`.
///
/// # Errors
/// Wrong usage, and what is wrong in a source, with its name.
pub fn parse(command: &Command, args: &[OsString], sources: &Sources) -> Result<ArgMatches, clap::Error> {
    filled_up(command, args, sources).map_err(|error| with_tip(command, args, error))
}

fn filled_up(command: &Command, args: &[OsString], sources: &Sources) -> Result<ArgMatches, clap::Error> {
    let plain = match command.clone().try_get_matches_from(args) {
        Err(error) if !error.use_stderr() => return Err(error),
        plain => plain.err(),
    };
    // Switches take a value, which their help need not say.
    let command = command.clone().mut_subcommands(|command| leaves(command, &|leaf| leaf.mut_args(valued)));
    let fills = match command.clone().ignore_errors(true).try_get_matches_from(args) {
        Ok(matches) => fills(&command, &matches, sources)
            .map_err(|fault| clap::Error::raw(ErrorKind::Io, fault + "\n"))?,
        Err(_) => Vec::new(),
    };
    let filled = |fills: &[Fill]| command.clone().try_get_matches_from(with(&command, args, fills));
    filled(&fills).map_err(|error| {
        let is_of_source =
            |count: &usize| is_told(&filled(&fills[..*count])) && !is_told(&filled(&fills[..count - 1]));
        match (1..=fills.len()).find(is_of_source).map(|count| &fills[count - 1]) {
            Some(fill) => fill.blame(&error),
            // A message that shows no value for switches, if there is one.
            None => plain.filter(|plain| plain.kind() == error.kind()).unwrap_or(error),
        }
    })
}

/// Whether parsing failed for another reason than a missing argument.
fn is_told(result: &Result<ArgMatches, clap::Error>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() != ErrorKind::MissingRequiredArgument)
}

/// Lets a switch take `true` or `false`; returns any other argument unchanged.
fn valued(arg: Arg) -> Arg {
    if !is_switch(&arg) {
        return arg;
    }
    arg.action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .value_parser(BoolishValueParser::new())
        .default_value("false")
        .default_missing_value("true")
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Whether [`valued`] made the argument.
fn is_valued_switch(arg: &Arg) -> bool {
    arg.is_require_equals_set()
}

/// A flag that a source gives.
struct Fill {
    flag: OsString,
    /// Name of the source, with the line of a file.
    origin: String,
}

impl Fill {
    /// Returns `error`, which this flag causes, with the name of the flag's source before its message.
    fn blame(&self, error: &clap::Error) -> clap::Error {
        let told = error.to_string();
        let told = without_values(told.split("\n\n").next().unwrap_or_default());
        let told = told.trim_start_matches("error: ");
        clap::Error::raw(error.kind(), format!("{}: {told}\n", self.origin))
    }
}

/// A message without the optional values of switches, such as `[=<QUIET>]`.
fn without_values(told: &str) -> String {
    let parts = told.split("[=<").enumerate();
    let rest =
        |(at, part): (usize, &'_ str)| if at == 0 { 0 } else { part.find(">]").map_or(0, |end| end + 2) };
    parts.map(|(at, part)| &part[rest((at, part))..]).collect()
}

/// Inserts the flags of `fills` after the names of the subcommands. Removes switches that are off, because they would
/// conflict with other arguments.
fn with(command: &Command, args: &[OsString], fills: &[Fill]) -> Vec<OsString> {
    let (mut at, mut command) = (1, command);
    while let Some(next) = args.get(at).and_then(|name| command.find_subcommand(name)) {
        (at, command) = (at + 1, next);
    }
    let (names, given) = args.split_at(at.min(args.len()));
    let fills = fills.iter().map(|fill| fill.flag.clone());
    let given = (0..given.len()).filter(|at| !is_off(command, given, *at)).map(|at| given[at].clone());
    names.iter().cloned().chain(fills).chain(given).collect()
}

/// Whether argument `at` is a switch that is off, and is not itself the value of the argument before it.
fn is_off(leaf: &Command, args: &[OsString], at: usize) -> bool {
    let of = |text: &OsString| {
        let text = text.to_str()?;
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let arg = leaf.get_arguments().find(|arg| {
            arg.get_long().is_some_and(|long| name == format!("--{long}"))
                || arg.get_short().is_some_and(|short| name == format!("-{short}"))
        })?;
        Some((is_valued_switch(arg), value.map(str::to_lowercase)))
    };
    let takes_next =
        at > 0 && of(&args[at - 1]).is_some_and(|(is_switch, value)| !is_switch && value.is_none());
    let ends = args[..at].iter().any(|arg| arg == "--");
    !takes_next
        && !ends
        && of(&args[at])
            .is_some_and(|(is_switch, value)| is_switch && value.is_some_and(|value| OFF.contains(&&*value)))
}

/// Returns the flags that the sources add to the given arguments.
fn fills(command: &Command, matches: &ArgMatches, sources: &Sources) -> Result<Vec<Fill>, String> {
    let (mut leaf, mut matches, mut names) = (command, matches, Vec::new());
    while let Some((name, below)) = matches.subcommand() {
        (leaf, matches) = (leaf.find_subcommand(name).expect("a matched subcommand is one"), below);
        names.push(name);
    }
    if leaf.get_arguments().all(|arg| arg.get_id() != CONFIG) {
        return Ok(Vec::new());
    }
    let is_given = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let is_on = |arg: &&Arg| !is_valued_switch(arg) || matches.get_flag(arg.get_id().as_str());
    let mut given: Vec<&Arg> = leaf.get_arguments().filter(is_given).collect();
    // A switch that is off excludes no other argument.
    let mut excluding: Vec<&Arg> = given.iter().copied().filter(is_on).collect();
    let named = matches.get_one::<PathBuf>(CONFIG);
    let file = match (named, &sources.file) {
        (Some(path), _) => Some(File::read(path)?),
        (None, Some(path)) if path.is_file() => Some(File::read(path)?),
        _ => None,
    };
    if let Some(file) = &file {
        file.check(command)?;
    }
    let of_variables = |arg: &Arg| variable(arg, &sources.variables);
    let of_file = |arg: &Arg| file.as_ref()?.value(arg, command, &names);
    let levels: [Level<'_>; 2] = [&of_variables, &of_file];
    let mut fills = Vec::new();
    for level in levels {
        let (mut taken, mut excluded) = (Vec::new(), Vec::new());
        for arg in leaf.get_arguments().filter(|arg| arg.get_long().is_some()) {
            let is_open = !FLAGS_ONLY.contains(&arg.get_id().as_str())
                && given.iter().all(|other| other.get_id() != arg.get_id())
                && excluding.iter().all(|other| !conflict(leaf, arg, other));
            let Some(value) = is_open.then(|| level(arg)).flatten() else { continue };
            let before = fills.len();
            fills.extend(value.flags(arg));
            taken.push(arg);
            excluded.extend((fills.len() > before).then_some(arg));
        }
        given.extend(taken);
        excluding.extend(excluded);
    }
    Ok(fills)
}

/// A source of arguments: returns the value of an argument, if the source has one.
type Level<'a> = &'a dyn Fn(&Arg) -> Option<Value>;

/// Whether two arguments of a command exclude each other.
fn conflict(command: &Command, one: &Arg, other: &Arg) -> bool {
    let names = |from: &Arg, to: &Arg| {
        command.get_arg_conflicts_with(from).iter().any(|arg| arg.get_id() == to.get_id())
    };
    let excludes = |group: &clap::ArgGroup| {
        let has = |arg: &Arg| group.get_args().any(|id| id == arg.get_id());
        has(one) && has(other) && !group.clone().is_multiple()
    };
    names(one, other) || names(other, one) || command.get_groups().any(excludes)
}

/// Values that a source has for one argument.
#[derive(Debug, Clone, PartialEq)]
struct Value {
    texts: Vec<OsString>,
    origin: String,
}

impl Value {
    fn flags(self, arg: &Arg) -> impl Iterator<Item = Fill> {
        let long = arg.get_long().expect("the argument has a long name");
        let is_switch = is_valued_switch(arg);
        let is_optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0) && !is_switch;
        let flag = move |text: OsString| match text.to_str() {
            Some("true") if is_optional => format!("--{long}").into(),
            _ => [OsStr::new(&format!("--{long}=")), &text].into_iter().collect(),
        };
        // A switch that is off is as if it were not there.
        let is_off = |text: &OsStr| text.to_str().is_some_and(|text| OFF.contains(&&*text.to_lowercase()));
        let texts = self.texts.into_iter().filter(move |text| !(is_switch && is_off(text)));
        texts.map(move |text| Fill { flag: flag(text), origin: self.origin.clone() })
    }
}

/// The variable for an argument: `PAGODA_` and its long name.
fn variable(arg: &Arg, variables: &BTreeMap<OsString, OsString>) -> Option<Value> {
    let name = format!("PAGODA_{}", arg.get_long().unwrap_or_default().replace('-', "_").to_uppercase());
    let value = variables.get(OsStr::new(&name)).filter(|value| !value.is_empty())?;
    Some(Value { texts: vec![value.clone()], origin: name })
}

#[cfg(test)]
mod tests;
