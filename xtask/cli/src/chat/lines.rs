//! Lines of input: edited in a terminal, or as they come.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::{fs, mem};

use anyhow::{Context as _, Result};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};

use super::command::{self, is_open};

const PROMPT: &str = "> ";

/// Number of lines that are remembered from one chat to the next.
const HISTORY: usize = 1000;

/// Source of lines.
pub(super) enum Lines {
    /// A terminal, with line editing and a history of earlier lines.
    Terminal(Box<Terminal>),
    /// Anything else.
    Plain(io::Lines<io::StdinLock<'static>>),
}

/// A terminal, and the file of the lines that were typed.
pub(super) struct Terminal {
    editor: Editor<Typing, DefaultHistory>,
    history: Option<PathBuf>,
    /// Text that was typed during an answer.
    ahead: String,
}

impl Lines {
    /// Reads standard input. Lines typed in a terminal are kept in the user's state directory.
    ///
    /// # Errors
    /// If the terminal cannot be read.
    pub(super) fn open() -> Result<Self> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self::Plain(io::stdin().lock().lines()));
        }
        let config = Config::builder().auto_add_history(true).max_history_size(HISTORY)?.build();
        let history = DefaultHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history).context("the terminal cannot be read")?;
        editor.set_helper(Some(Typing::default()));
        let history =
            dirs::state_dir().or_else(dirs::data_local_dir).map(|folder| folder.join("pagoda/chat-history"));
        if let Some(path) = history.as_deref().filter(|path| path.is_file()) {
            editor.load_history(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        }
        Ok(Self::Terminal(Box::new(Terminal { editor, history, ahead: String::new() })))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Begins the next line with a text that was typed before its prompt.
    pub(super) fn begin_with(&mut self, text: String) {
        if let Self::Terminal(terminal) = self {
            terminal.ahead = text;
        }
    }

    /// The next line, or the next several between `"""`; `None` at the end of the input, or after Ctrl-D.
    ///
    /// # Errors
    /// If the input cannot be read, or is not UTF-8.
    pub(super) fn next(&mut self) -> Result<Option<String>> {
        match self {
            Self::Terminal(terminal) => terminal.next(),
            Self::Plain(lines) => {
                let mut next = || lines.next().transpose().context("standard input cannot be read");
                let Some(mut text) = next()? else { return Ok(None) };
                while is_open(&text) {
                    let Some(line) = next()? else { break };
                    text = text + "\n" + &line;
                }
                Ok(Some(text))
            }
        }
    }
}

impl Terminal {
    fn next(&mut self) -> Result<Option<String>> {
        loop {
            let ahead = mem::take(&mut self.ahead);
            match self.editor.readline_with_initial(PROMPT, (&ahead, "")) {
                Ok(line) => return Ok(Some(line)),
                Err(ReadlineError::Eof) => return Ok(None),
                // It clears the line, as in shells.
                Err(ReadlineError::Interrupted) => eprintln!("Ctrl-D ends the chat"),
                Err(error) => return Err(error).context("the terminal cannot be read"),
            }
        }
    }
}

impl Drop for Terminal {
    /// Saves the lines. A failure is not reported, because it would be of no use at the end of a chat.
    fn drop(&mut self) {
        let Some(path) = &self.history else { return };
        if path.parent().map(fs::create_dir_all).is_some_and(|made| made.is_ok()) {
            let _ = self.editor.append_history(path);
        }
    }
}

/// Help with typing: names of commands, of parameters and of files, and lines that end a message of several.
#[derive(Default)]
struct Typing {
    files: FilenameCompleter,
}

impl Completer for Typing {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..at];
        let pairs = |names: Vec<String>| {
            names.into_iter().map(|name| Pair { display: name.clone(), replacement: name + " " }).collect()
        };
        match typed.split_once(' ') {
            None if typed.starts_with('/') => Ok((0, pairs(command::names_from(typed)))),
            Some(("/load" | "/save" | "/read", _)) => self.files.complete(line, at, context),
            Some(("/set", name)) if !name.contains(' ') => {
                Ok((at - name.len(), pairs(command::parameters_from(name))))
            }
            _ => Ok((at, Vec::new())),
        }
    }
}

impl Validator for Typing {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_open(context.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Hinter for Typing {
    type Hint = String;
}

impl Highlighter for Typing {}

impl Helper for Typing {}
