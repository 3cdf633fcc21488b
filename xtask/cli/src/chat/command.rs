//! Commands of a line of input.

use anyhow::{Result, bail, ensure};
use clap::{Args as _, Command as Parameters};

use crate::cli::SamplingArgs;

/// The commands, as `/help` prints them.
pub(super) const HELP: &str = "\
/read FILE      put the text of FILE, which may be a PDF, before the next message
/retry          answer the last message again, with another seed
/set NAME X     set a parameter of the sampler, such as temperature 0.3; without NAME X, print those that are set
/save FILE      write the conversation to FILE, as JSON
/load FILE      go on with the conversation in FILE
/new            forget the conversation, but not the system message
/system TEXT    set the system message; without TEXT, remove it
/sparse POLICY  attend with another policy, such as quest:page_budget=64 or full, for which the next answer computes the
                conversation again; without POLICY, name it
/stats          say what the engine holds and has done
/help           print this list
/exit           end, as Ctrl-D does
A message of several lines stands between \"\"\" and \"\"\". One that begins with / is written with two.";

/// Mark before and after a message of several lines.
const MARK: &str = "\"\"\"";

/// A line of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input<'a> {
    /// White space.
    Nothing,
    Message(&'a str),
    Command(Command<'a>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command<'a> {
    Read(&'a str),
    Retry,
    /// Sets a parameter of the sampler. An empty name and value print all parameters.
    Set {
        name: &'a str,
        value: &'a str,
    },
    Save(&'a str),
    Load(&'a str),
    New,
    /// Sets the system message; an empty text removes it.
    System(&'a str),
    /// Sets the policy; empty to print it.
    Sparse(&'a str),
    Stats,
    Help,
    Exit,
}

impl<'a> Input<'a> {
    /// Reads a line, or several between marks.
    ///
    /// # Errors
    /// If it names no command, or one without what it needs.
    pub(super) fn read(line: &'a str) -> Result<Self> {
        let line = line.trim();
        if let Some(text) = line.strip_prefix(MARK) {
            let text = text.strip_suffix(MARK).unwrap_or(text).trim_matches('\n');
            return Ok(if text.trim().is_empty() { Self::Nothing } else { Self::Message(text) });
        }
        let Some(command) = line.strip_prefix('/') else {
            return Ok(if line.is_empty() { Self::Nothing } else { Self::Message(line) });
        };
        if command.starts_with('/') {
            return Ok(Self::Message(command));
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim_start();
        let command = match name {
            "read" | "save" | "load" if rest.is_empty() => bail!("/{name} needs the name of a file"),
            "retry" | "new" | "stats" | "help" | "exit" if !rest.is_empty() => {
                bail!("/{name} takes nothing, not {rest:?}")
            }
            "read" => Command::Read(rest),
            "retry" => Command::Retry,
            "set" => {
                let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                ensure!(name.is_empty() || !value.is_empty(), "/set {name} needs a value");
                Command::Set { name, value: value.trim() }
            }
            "save" => Command::Save(rest),
            "load" => Command::Load(rest),
            "new" => Command::New,
            "system" => Command::System(rest),
            "sparse" => Command::Sparse(rest),
            "stats" => Command::Stats,
            "help" => Command::Help,
            "exit" => Command::Exit,
            _ => bail!("there is no command /{name}; /help lists them"),
        };
        Ok(Self::Command(command))
    }
}

/// Whether a message of several lines has begun and not ended.
pub(super) fn is_open(text: &str) -> bool {
    let Some(rest) = text.trim().strip_prefix(MARK) else { return false };
    !rest.ends_with(MARK)
}

/// Commands that begin with a text.
pub(super) fn names_from(typed: &str) -> Vec<String> {
    let names = HELP.lines().filter(|line| line.starts_with('/')).filter_map(|line| line.split(' ').next());
    names.filter(|name| name.starts_with(typed)).map(str::to_owned).collect()
}

/// Parameters of `/set`: the long flags of the sampler.
pub(super) fn parameters() -> Parameters {
    SamplingArgs::augment_args(Parameters::new("/set").no_binary_name(true).disable_help_flag(true))
        // What a line does not name stays as it is.
        .mut_args(|arg| arg.default_value(None::<&str>))
}

/// Names of parameters that begin with a text.
pub(super) fn parameters_from(typed: &str) -> Vec<String> {
    let parameters = parameters();
    let names = parameters.get_arguments().filter_map(|arg| arg.get_long());
    names.filter(|name| name.starts_with(typed)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        let message = |line| Input::read(line).unwrap();
        assert_eq!(message("  "), Input::Nothing);
        assert_eq!(message(" Why? "), Input::Message("Why?"));
        assert_eq!(message("//save is a command"), Input::Message("/save is a command"));
        let command = |line| match Input::read(line).unwrap() {
            Input::Command(command) => command,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(command("/save a b.json"), Command::Save("a b.json"));
        assert_eq!(command("/load\tx"), Command::Load("x"));
        assert_eq!(command("/system Be  brief."), Command::System("Be  brief."));
        assert_eq!(command("/system"), Command::System(""));
        assert_eq!(command("/sparse quest:page_budget=4"), Command::Sparse("quest:page_budget=4"));
        assert_eq!(command("/read My notes.md"), Command::Read("My notes.md"));
        assert_eq!(command("/set  top-p 0.5"), Command::Set { name: "top-p", value: "0.5" });
        assert_eq!(command("/set"), Command::Set { name: "", value: "" });
        assert_eq!(message("\"\"\"one\n/two\n\"\"\""), Input::Message("one\n/two"));
        assert_eq!(message("\"\"\"\n \"\"\""), Input::Nothing);
    }

    #[test]
    fn marks_open_and_close_a_message() {
        assert!(is_open("\"\"\"") && is_open("\"\"\"a\nb") && is_open(" \"\"\"a \"\"\" b"));
        assert!(!is_open("\"\"\"a\"\"\"") && !is_open("a \"\"\"") && !is_open(""));
    }

    #[test]
    fn names_are_completed() {
        assert_eq!(names_from("/s"), ["/set", "/save", "/system", "/sparse", "/stats"]);
        assert_eq!(names_from("/x"), [""; 0]);
        assert_eq!(parameters_from("top"), ["top-k", "top-p"]);
    }

    #[test]
    fn the_help_names_all_commands() {
        for line in HELP.lines().filter(|line| line.starts_with('/')) {
            let name = line.split(' ').next().unwrap();
            let with = format!("{name} x");
            assert!(Input::read(name).is_ok() || Input::read(&with).is_ok(), "{line}");
        }
        for name in
            ["read", "retry", "set", "save", "load", "new", "system", "sparse", "stats", "help", "exit"]
        {
            assert!(HELP.lines().any(|line| line.starts_with(&format!("/{name} "))), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refusal = |line| Input::read(line).unwrap_err().to_string();
        assert_eq!(refusal("/sav x"), "there is no command /sav; /help lists them");
        assert_eq!(refusal("/save"), "/save needs the name of a file");
        assert_eq!(refusal("/stats now"), "/stats takes nothing, not \"now\"");
        assert_eq!(refusal("/set top-p"), "/set top-p needs a value");
    }
}
