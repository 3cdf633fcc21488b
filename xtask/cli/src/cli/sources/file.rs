//! A file of arguments: keys for all commands, and tables with keys for one command each.

use std::fs;
use std::path::Path;

use clap::{Arg, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{COMMANDS, FLAGS_ONLY, Value};

/// Minimum Jaro similarity of a wrong name and a valid one for a message to suggest the valid one.
const SIMILAR: f64 = 0.7;

/// A file that was read.
#[derive(Debug)]
pub(super) struct File {
    name: String,
    entries: Vec<Entry>,
}

/// A key with its value.
#[derive(Debug)]
struct Entry {
    /// Names of the command whose table holds the key, outermost first; empty if the key is for all commands.
    table: Vec<String>,
    key: String,
    line: usize,
    /// Texts of the values; `None` if the value has a type that no flag takes.
    texts: Option<Vec<String>>,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is not TOML.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|error| format!("{name}: cannot be read: {error}"))?;
        let table = DeTable::parse(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| line(&text, span.start));
            format!("{name}:{line}: {}", error.message())
        })?;
        let mut entries = Vec::new();
        collect(&text, table.get_ref(), &[], &mut entries);
        Ok(Self { name, entries })
    }

    /// Checks that every key of the file is a flag of some command.
    ///
    /// # Errors
    /// The first key or table that nothing has, or whose value is of no kind that flags have.
    pub(super) fn check(&self, root: &Command) -> Result<(), String> {
        self.entries.iter().try_for_each(|entry| {
            let told = entry.fault(root);
            told.map_or(Ok(()), |fault| Err(format!("{}: {fault}", self.origin(entry))))
        })
    }

    /// The value of an argument of the command with these names. The table of the command prevails over keys for all.
    pub(super) fn value(&self, arg: &Arg, root: &Command, names: &[&str]) -> Option<Value> {
        let of = |table: &[&str]| {
            let is_of = |entry: &&Entry| entry.is_of(root, table) && is_named(arg, &entry.key);
            self.entries.iter().rfind(is_of)
        };
        let entry = (0..=names.len()).rev().find_map(|length| of(&names[..length]))?;
        let texts = entry.texts.iter().flatten().map(Into::into).collect();
        Some(Value { texts, origin: self.origin(entry) })
    }

    fn origin(&self, entry: &Entry) -> String {
        format!("{}:{}", self.name, entry.line)
    }
}

impl Entry {
    /// Whether the entry is in the table of the command `names`. The file may call the command by an alias.
    fn is_of(&self, root: &Command, names: &[&str]) -> bool {
        let mut command = root;
        self.table.len() == names.len()
            && self.table.iter().zip(names).all(|(given, name)| {
                let found = command.find_subcommand(given);
                command = found.unwrap_or(command);
                found.is_some_and(|found| found.get_name() == *name)
            })
    }

    /// Returns a message about what is wrong with the entry; `None` if the entry is valid.
    fn fault(&self, root: &Command) -> Option<String> {
        let Self { table, key, texts, .. } = self;
        let mut command = root;
        for name in table {
            let Some(below) = command.find_subcommand(name) else {
                let names = command.get_subcommands().map(Command::get_name);
                return Some(format!("there is no command `{name}`{}", meant(name, names)));
            };
            command = below;
        }
        let long = key.replace('_', "-");
        match long.as_str() {
            "config" => return Some("a file of flags names no other one".to_owned()),
            name if FLAGS_ONLY.contains(&name) => {
                return Some(format!("`{key}` is given on the command line alone"));
            }
            _ => {}
        }
        let args = args(command);
        if !args.iter().any(|arg| is_named(arg, key)) {
            let who = if table.is_empty() {
                "no command has a".to_owned()
            } else {
                format!("{} has no", table.join(" "))
            };
            let names = args.iter().filter_map(|arg| arg.get_long());
            return Some(format!("{who} key `{key}`{}", meant(&long, names)));
        }
        texts.is_none().then(|| format!("`{key}` must be a text, a number, true, false, or a list of these"))
    }
}

/// Adds the entries of a table and of its nested tables to `entries`.
fn collect(text: &str, table: &DeTable<'_>, names: &[String], entries: &mut Vec<Entry>) {
    for (key, value) in table {
        if let DeValue::Table(below) = value.get_ref() {
            collect(text, below, &[names, &[key.get_ref().to_string()]].concat(), entries);
            continue;
        }
        entries.push(Entry {
            table: names.to_vec(),
            key: key.get_ref().to_string(),
            line: line(text, key.span().start),
            texts: texts(value),
        });
    }
}

/// Returns the texts that a flag would have for this value.
fn texts(value: &Spanned<DeValue<'_>>) -> Option<Vec<String>> {
    Some(match value.get_ref() {
        DeValue::Array(values) => values.iter().map(texts).collect::<Option<Vec<_>>>()?.concat(),
        DeValue::Table(_) | DeValue::Datetime(_) => return None,
        DeValue::String(text) => vec![text.to_string()],
        DeValue::Integer(number) => vec![number.to_string()],
        DeValue::Float(number) => vec![number.to_string()],
        DeValue::Boolean(value) => vec![value.to_string()],
    })
}

/// Lists the arguments with long names that sources can give, of a command and of its subcommands.
fn args(command: &Command) -> Vec<&Arg> {
    let own = command.get_arguments().filter(|arg| arg.get_long().is_some());
    let below = command.get_subcommands().filter(|below| {
        COMMANDS.contains(&below.get_name())
            || !command.get_subcommands().any(|c| COMMANDS.contains(&c.get_name()))
    });
    own.chain(below.flat_map(args)).collect()
}

/// Whether a key is a name of an argument.
fn is_named(arg: &Arg, key: &str) -> bool {
    let key = key.replace('_', "-");
    let aliases = arg.get_all_aliases().unwrap_or_default();
    arg.get_long().is_some_and(|long| long == key) || aliases.contains(&key.as_str())
}

/// Suggests the most similar of `names`, as the end of a message; empty if none is similar enough.
fn meant<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let likeness = |other: &&str| strsim::jaro(name, other);
    let best = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let best = best.filter(|other| likeness(other) > SIMILAR);
    best.map_or(String::new(), |other| format!("; did you mean `{other}`?"))
}

/// Number of the line in which a byte is.
fn line(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}
