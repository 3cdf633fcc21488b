//! Lines of input: edited in a terminal, or as they come.

use std::io::{self, BufRead, IsTerminal};

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};

const PROMPT: &str = "> ";

/// Source of lines.
pub(super) enum Lines {
    /// A terminal, with editing and the lines before.
    Terminal(Box<DefaultEditor>),
    /// Anything else.
    Plain(io::Lines<io::StdinLock<'static>>),
}

impl Lines {
    /// Reads standard input.
    ///
    /// # Errors
    /// If the terminal cannot be read.
    pub(super) fn open() -> Result<Self> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self::Plain(io::stdin().lock().lines()));
        }
        let config = Config::builder().auto_add_history(true).build();
        let editor = DefaultEditor::with_config(config).context("the terminal cannot be read")?;
        Ok(Self::Terminal(Box::new(editor)))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next line; `None` at the end of the input, or after Ctrl-D.
    ///
    /// # Errors
    /// If the input cannot be read, or is not UTF-8.
    pub(super) fn next(&mut self) -> Result<Option<String>> {
        let editor = match self {
            Self::Plain(lines) => return lines.next().transpose().context("standard input cannot be read"),
            Self::Terminal(editor) => editor,
        };
        loop {
            match editor.readline(PROMPT) {
                Ok(line) => return Ok(Some(line)),
                Err(ReadlineError::Eof) => return Ok(None),
                // It clears the line, as in shells.
                Err(ReadlineError::Interrupted) => eprintln!("Ctrl-D ends the chat"),
                Err(error) => return Err(error).context("the terminal cannot be read"),
            }
        }
    }
}
