//! Composes the text of a kernel from its file and the shared modules it imports.
//!
//! A line `#import name` pulls the module `name` in once, depth first. A line `#import slot = default` lets the
//! caller choose: a [`Choice::Module`] for types and algorithms, a [`Choice::Size`] for a number that sizes a
//! function-local array (WGSL takes no `override` there). `enable` directives are hoisted to the top. Anything
//! unknown is an error; there are no conditionals.

use smallvec::SmallVec;
use std::fmt::Write as _;

/// Shared WGSL modules: `(name, text)`.
pub type Modules = &'static [(&'static str, &'static str)];

/// What fills an import slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Choice {
    /// The text of the shared module of this name.
    Module(&'static str),
    /// `const SLOT: u32 = N;`
    Size(u32),
}

/// Why a kernel does not compose.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComposeError {
    /// An import names no module.
    #[error("kernel {kernel}: import of unknown module `{module}`")]
    UnknownModule {
        /// The kernel being composed.
        kernel: String,
        /// The module that does not exist.
        module: String,
    },
    /// A choice names no slot of the kernel.
    #[error("kernel {kernel}: no import slot `{slot}`")]
    UnknownSlot {
        /// The kernel being composed.
        kernel: String,
        /// The slot that no `#import slot = default` line opens.
        slot: String,
    },
}

/// Composes `text`, the kernel named `kernel`, with `choices` for its import slots.
///
/// # Errors
/// [`ComposeError`] for an import of a module in none of `modules`, or a choice without a slot.
pub fn compose(
    kernel: &str,
    text: &str,
    modules: &[Modules],
    choices: &[(&'static str, Choice)],
) -> Result<String, ComposeError> {
    let mut composer = Composer {
        kernel,
        modules,
        choices,
        imported: SmallVec::new(),
        filled: SmallVec::new(),
        enables: Vec::new(),
        body: String::new(),
    };
    composer.append(text)?;
    for (slot, _) in choices {
        if !composer.filled.iter().any(|f| f == slot) {
            return Err(ComposeError::UnknownSlot { kernel: kernel.into(), slot: (*slot).into() });
        }
    }
    let mut out = composer.enables.concat();
    out.push_str(&composer.body);
    Ok(out)
}

struct Composer<'a> {
    kernel: &'a str,
    modules: &'a [Modules],
    choices: &'a [(&'static str, Choice)],
    imported: SmallVec<[String; 8]>,
    filled: SmallVec<[String; 8]>,
    enables: Vec<String>,
    body: String,
}

impl Composer<'_> {
    fn append(&mut self, text: &str) -> Result<(), ComposeError> {
        for line in text.lines() {
            if let Some(import) = line.strip_prefix("#import ") {
                self.import(import)?;
            } else if line.starts_with("enable ") {
                let line = format!("{line}\n");
                if !self.enables.contains(&line) {
                    self.enables.push(line);
                }
            } else {
                self.body.push_str(line);
                self.body.push('\n');
            }
        }
        Ok(())
    }

    fn import(&mut self, import: &str) -> Result<(), ComposeError> {
        let Some((slot, default)) = import.split_once('=') else {
            return self.module(import.trim());
        };
        let (slot, default) = (slot.trim(), default.trim());
        if self.filled.iter().any(|f| f == slot) {
            return Ok(());
        }
        self.filled.push(slot.into());
        let chosen = self.choices.iter().find(|(name, _)| *name == slot);
        let choice = match chosen {
            Some((_, choice)) => *choice,
            None => match default.parse() {
                Ok(n) => Choice::Size(n),
                Err(_) => return self.module(default),
            },
        };
        match choice {
            Choice::Module(name) => self.module(name),
            Choice::Size(n) => {
                writeln!(self.body, "const {slot}: u32 = {n}u;").expect("a String takes every write");
                Ok(())
            }
        }
    }

    fn module(&mut self, name: &str) -> Result<(), ComposeError> {
        if self.imported.iter().any(|i| i == name) {
            return Ok(());
        }
        self.imported.push(name.into());
        let text = self.modules.iter().flat_map(|table| table.iter()).find(|(n, _)| *n == name);
        match text {
            Some((_, text)) => self.append(text),
            None => Err(ComposeError::UnknownModule { kernel: self.kernel.into(), module: name.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES: Modules =
        &[("a", "enable f16;\n#import b\nfn a() {}"), ("b", "fn b() {}"), ("c", "fn c() {}")];

    #[test]
    fn imports_once_depth_first_and_hoists_enables() {
        let text = compose("k", "#import a\n#import b\nfn k() {}", &[MODULES], &[]).unwrap();
        assert_eq!(text, "enable f16;\nfn b() {}\nfn a() {}\nfn k() {}\n");
    }

    #[test]
    fn slots_take_a_choice_or_their_default() {
        let kernel = "#import part = b\n#import N = 4\nfn k() {}";
        assert_eq!(
            compose("k", kernel, &[MODULES], &[]).unwrap(),
            "fn b() {}\nconst N: u32 = 4u;\nfn k() {}\n"
        );
        let choices = [("part", Choice::Module("c")), ("N", Choice::Size(8))];
        let text = compose("k", kernel, &[MODULES], &choices).unwrap();
        assert_eq!(text, "fn c() {}\nconst N: u32 = 8u;\nfn k() {}\n");
    }

    #[test]
    fn unknown_names_are_errors() {
        let module = compose("k", "#import nope", &[MODULES], &[]).unwrap_err();
        assert_eq!(module.to_string(), "kernel k: import of unknown module `nope`");
        let slot = compose("k", "fn k() {}", &[MODULES], &[("N", Choice::Size(1))]).unwrap_err();
        assert_eq!(slot.to_string(), "kernel k: no import slot `N`");
    }
}
