//! Tips for mistakes that clap has none for.

use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Adds a tip to an error, if the arguments show what was meant.
pub(super) fn with_tip(command: &Command, args: &[OsString], error: clap::Error) -> clap::Error {
    match error.kind() {
        ErrorKind::UnknownArgument => with_quotes(args, error),
        // The same name without `help` before it gets one.
        ErrorKind::InvalidSubcommand if args.get(1).is_some_and(|name| name == "help") => {
            let without = args.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, arg)| arg);
            command.clone().try_get_matches_from(without).err().unwrap_or(error)
        }
        _ => error,
    }
}

/// Adds a tip for a word after a prompt: a prompt of several words must be in quotes.
fn with_quotes(args: &[OsString], mut error: clap::Error) -> clap::Error {
    let takes_prompt =
        ["run", "generate", "tokenize"].iter().any(|name| args.get(1).is_some_and(|arg| arg == name));
    let is_word = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) => {
            !word.starts_with('-') && args.iter().any(|arg| arg == OsStr::new(word))
        }
        _ => false,
    };
    if takes_prompt && is_word {
        let tip = StyledStr::from("a text of several words stands in quotes: \"why is the sky blue?\"");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}
