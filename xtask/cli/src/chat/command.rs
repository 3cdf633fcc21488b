//! Commands of a line of input.

use anyhow::{Result, bail};

/// The commands, as `/help` prints them.
pub(super) const HELP: &str = "\
/save FILE      write the conversation to FILE, as JSON
/load FILE      go on with the conversation in FILE
/new            forget the conversation, but not the system message
/system TEXT    set the system message; without TEXT, remove it
/sparse POLICY  attend with another policy, such as quest:page_budget=64 or full, for which the next answer computes the
                conversation again; without POLICY, name it
/stats          say what the engine holds and has done
/help           print this list
/exit           end, as Ctrl-D does
A message that begins with / is written with two.";

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
    Save(&'a str),
    Load(&'a str),
    New,
    /// The system message; empty for none.
    System(&'a str),
    /// Sets the policy; empty to print it.
    Sparse(&'a str),
    Stats,
    Help,
    Exit,
}

impl<'a> Input<'a> {
    /// Reads a line.
    ///
    /// # Errors
    /// If it names no command, or one without what it needs.
    pub(super) fn read(line: &'a str) -> Result<Self> {
        let line = line.trim();
        let Some(command) = line.strip_prefix('/') else {
            return Ok(if line.is_empty() { Self::Nothing } else { Self::Message(line) });
        };
        if command.starts_with('/') {
            return Ok(Self::Message(command));
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim_start();
        let command = match name {
            "save" | "load" if rest.is_empty() => bail!("/{name} needs the name of a file"),
            "new" | "stats" | "help" | "exit" if !rest.is_empty() => {
                bail!("/{name} takes nothing, not {rest:?}")
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
    }

    #[test]
    fn the_help_names_all_commands() {
        for line in HELP.lines().filter(|line| line.starts_with('/')) {
            let name = line.split(' ').next().unwrap();
            let with = format!("{name} x");
            assert!(Input::read(name).is_ok() || Input::read(&with).is_ok(), "{line}");
        }
        for name in ["save", "load", "new", "system", "sparse", "stats", "help", "exit"] {
            assert!(HELP.lines().any(|line| line.starts_with(&format!("/{name} "))), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refusal = |line| Input::read(line).unwrap_err().to_string();
        assert_eq!(refusal("/sav x"), "there is no command /sav; /help lists them");
        assert_eq!(refusal("/save"), "/save needs the name of a file");
        assert_eq!(refusal("/stats now"), "/stats takes nothing, not \"now\"");
    }
}
