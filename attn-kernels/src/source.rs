//! Composes the text of a kernel from its file and the shared modules it imports.
//!
//! A line `#import name` pulls the module `name` in once, depth first. A line `#import slot = default` lets the
//! caller choose: a [`SlotContent::Module`] for types and algorithms, a [`SlotContent::Size`] for a number that sizes a
//! function-local array (WGSL takes no `override` there). `enable` directives are hoisted to the top. Anything
//! unknown is an error; there are no conditionals.
//!
//! Lines from `#unroll i < N` to the matching `#end` are repeated N times, each in a block where `i` is a constant; N
//! is a number or a slot filled with one. Arrays of cooperative matrices stay in registers only if every index into
//! them is constant, and WGSL cannot ask a driver to unroll. `#let NAME = A * B / C` makes a constant of numbers and slots,
//! from left to right, that `#unroll` may count by too.

mod built_ins;

use built_ins::parameters_of_their_own;
use smallvec::SmallVec;
use std::fmt::Write as _;

/// Shared WGSL modules: `(name, text)`.
pub type Modules = &'static [(&'static str, &'static str)];

/// Content of an import slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotContent {
    /// The text of the shared module of this name.
    Module(&'static str),
    /// A number, `const SLOT: u32 = N;`.
    Size(u32),
}

/// Reason why the text of a kernel could not be composed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComposeError {
    /// An import names a module that does not exist.
    #[error("kernel {kernel}: import of unknown module `{module}`")]
    UnknownModule {
        /// The kernel being composed.
        kernel: String,
        /// The module that does not exist.
        module: String,
    },
    /// A choice names a slot that the kernel does not have.
    #[error("kernel {kernel}: no import slot `{slot}`")]
    UnknownSlot {
        /// The kernel being composed.
        kernel: String,
        /// The slot that no `#import slot = default` line opens.
        slot: String,
    },
    /// The value of a `#let` line is not a product or quotient of numbers, or is not whole.
    #[error("kernel {kernel}: `{line}` has no value")]
    Let {
        /// The kernel being composed.
        kernel: String,
        /// The line.
        line: String,
    },
    /// An `#unroll` line does not have the form `#unroll name < count`, uses a slot without a number, or has no `#end`.
    #[error("kernel {kernel}: `{line}` does not unroll")]
    Unroll {
        /// The kernel being composed.
        kernel: String,
        /// The line.
        line: String,
    },
}

/// Choices for slots that a kernel may open.
pub type Choices<'a> = &'a [(&'static str, SlotContent)];

/// Composes `text`, the kernel named `kernel`, with `choices` for its import slots. Slots without a choice take the module of
/// `defaults`, or else the one of their import line.
///
/// # Errors
/// [`ComposeError`] for an import of a module in none of `modules`, a choice without a slot, or a malformed `#unroll` or `#let`.
pub fn compose(
    kernel: &str,
    text: &str,
    modules: &[Modules],
    choices: Choices<'_>,
    defaults: Choices<'_>,
) -> Result<String, ComposeError> {
    let mut composer = Composer {
        kernel,
        modules,
        choices,
        defaults,
        imported: SmallVec::new(),
        filled: SmallVec::new(),
        sizes: SmallVec::new(),
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
    Ok(parameters_of_their_own(out))
}

struct Composer<'a> {
    kernel: &'a str,
    modules: &'a [Modules],
    choices: Choices<'a>,
    defaults: Choices<'a>,
    imported: SmallVec<[String; 8]>,
    filled: SmallVec<[String; 8]>,
    sizes: SmallVec<[(String, u32); 8]>,
    enables: Vec<String>,
    body: String,
}

impl Composer<'_> {
    fn append(&mut self, text: &str) -> Result<(), ComposeError> {
        self.lines(&text.lines().collect::<Vec<_>>())
    }

    fn lines(&mut self, mut rest: &[&str]) -> Result<(), ComposeError> {
        while let Some((line, after)) = rest.split_first() {
            rest = after;
            if line.trim_start().starts_with("#unroll ") {
                rest = self.unroll(line.trim(), after)?;
            } else if let Some(import) = line.strip_prefix("#import ") {
                self.import(import)?;
            } else if let Some(constant) = line.strip_prefix("#let ") {
                let malformed = || ComposeError::Let { kernel: self.kernel.into(), line: (*line).into() };
                let (name, n) = self.constant(constant).ok_or_else(malformed)?;
                self.size(name, n);
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

    /// Repeats the lines between the `#unroll` in `line` and its `#end`; returns the lines after the `#end`.
    fn unroll<'l, 't>(&mut self, line: &str, lines: &'l [&'t str]) -> Result<&'l [&'t str], ComposeError> {
        let malformed = || ComposeError::Unroll { kernel: self.kernel.into(), line: line.into() };
        let (name, count) = self.trips(line).ok_or_else(malformed)?;
        let mut depth = 1;
        let end = lines.iter().position(|line| {
            let line = line.trim_start();
            depth += i32::from(line.starts_with("#unroll ")) - i32::from(line == "#end");
            depth == 0
        });
        let end = end.ok_or_else(malformed)?;
        for i in 0..count {
            writeln!(self.body, "{{ const {name}: u32 = {i}u;").expect("a String takes every write");
            self.lines(&lines[..end])?;
            self.body.push_str("}\n");
        }
        Ok(&lines[end + 1..])
    }

    /// Parses the name and count of `#unroll name < count`.
    fn trips<'l>(&self, line: &'l str) -> Option<(&'l str, u32)> {
        let (name, count) = line.strip_prefix("#unroll ")?.split_once('<')?;
        Some((name.trim(), self.number(count)?))
    }

    /// Returns the number that `text` states, or the value of the slot or constant that `text` names.
    fn number(&self, text: &str) -> Option<u32> {
        let text = text.trim();
        let named = self.sizes.iter().find(|(name, _)| name == text).map(|(_, n)| *n);
        named.or_else(|| text.parse().ok())
    }

    /// Parses the name and value of `NAME = A * B / C`, which is whole at every step.
    fn constant<'l>(&self, line: &'l str) -> Option<(&'l str, u32)> {
        let (name, value) = line.split_once('=')?;
        let mut value = value.split_inclusive(['*', '/']);
        let operand = |text: &str| self.number(text.trim_end_matches(['*', '/']));
        let mut text = value.next()?;
        let mut n = operand(text)?;
        for next in value {
            let by = operand(next)?;
            n = match text.ends_with('*') {
                true => n.checked_mul(by)?,
                false => n.checked_div(by).filter(|whole| whole * by == n)?,
            };
            text = next;
        }
        Some((name.trim(), n))
    }

    fn size(&mut self, name: &str, n: u32) {
        self.sizes.push((name.into(), n));
        writeln!(self.body, "const {name}: u32 = {n}u;").expect("a String takes every write");
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
        let chosen = self.choices.iter().chain(self.defaults).find(|(name, _)| *name == slot);
        let choice = match chosen {
            Some((_, choice)) => *choice,
            None => match default.parse() {
                Ok(n) => SlotContent::Size(n),
                Err(_) => return self.module(default),
            },
        };
        match choice {
            SlotContent::Module(name) => self.module(name),
            SlotContent::Size(n) => {
                self.size(slot, n);
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
        let text = compose("k", "#import a\n#import b\nfn k() {}", &[MODULES], &[], &[]).unwrap();
        assert_eq!(text, "enable f16;\nfn b() {}\nfn a() {}\nfn k() {}\n");
    }

    #[test]
    fn slots_take_a_choice_or_their_default() {
        let kernel = "#import part = b\n#import N = 4\nfn k() {}";
        assert_eq!(
            compose("k", kernel, &[MODULES], &[], &[]).unwrap(),
            "fn b() {}\nconst N: u32 = 4u;\nfn k() {}\n"
        );
        let choices = [("part", SlotContent::Module("c")), ("N", SlotContent::Size(8))];
        let text = compose("k", kernel, &[MODULES], &choices, &[]).unwrap();
        assert_eq!(text, "fn c() {}\nconst N: u32 = 8u;\nfn k() {}\n");
        let defaults = [
            ("part", SlotContent::Module("a")),
            ("N", SlotContent::Size(1)),
            ("other", SlotContent::Size(2)),
        ];
        let text = compose("k", kernel, &[MODULES], &choices[..1], &defaults).unwrap();
        assert_eq!(text, "fn c() {}\nconst N: u32 = 1u;\nfn k() {}\n");
    }

    #[test]
    fn unrolls_by_number_and_by_slot() {
        let kernel = "#import N = 1\n#unroll i < N\n  #unroll j < 2\n  f(i, j);\n  #end\n#end\ng();";
        let text = compose("k", kernel, &[MODULES], &[("N", SlotContent::Size(2))], &[]).unwrap();
        let inner = "{ const j: u32 = 0u;\n  f(i, j);\n}\n{ const j: u32 = 1u;\n  f(i, j);\n}\n";
        let want = format!(
            "const N: u32 = 2u;\n{{ const i: u32 = 0u;\n{inner}}}\n{{ const i: u32 = 1u;\n{inner}}}\ng();\n"
        );
        assert_eq!(text, want);
    }

    #[test]
    fn constants_are_products_and_quotients_of_slots() {
        let kernel = "#import N = 6\n#let M = N * 4 / 3\n#unroll i < M\n#end";
        let text = compose("k", kernel, &[MODULES], &[], &[]).unwrap();
        assert!(text.starts_with("const N: u32 = 6u;\nconst M: u32 = 8u;\n{ const i: u32 = 0u;\n"), "{text}");
        assert_eq!(text.matches("const i").count(), 8);
        for line in ["#let M = N", "#let M = 3 / 2", "#let M = 3 / 0", "#let M", "#let M = 3 * 2147483647"] {
            let error = compose("k", line, &[MODULES], &[], &[]).unwrap_err();
            assert_eq!(error, ComposeError::Let { kernel: "k".into(), line: line.into() });
        }
    }

    #[test]
    fn malformed_unrolls_are_errors() {
        for kernel in [
            "#unroll i < 2\nf();",
            "#unroll i < M\n#end",
            "#unroll i\n#end",
            "  #unroll i < 1\n#unroll j < 1\n#end",
        ] {
            let error = compose("k", kernel, &[MODULES], &[], &[]).unwrap_err();
            let line = kernel.lines().next().unwrap().trim().into();
            assert_eq!(error, ComposeError::Unroll { kernel: "k".into(), line });
        }
    }

    #[test]
    fn built_ins_of_subgroups_are_parameters_of_their_own() {
        let lane =
            "struct Lane {\n    @builtin(subgroup_id) of: u32,\n    @builtin(subgroup_size) size: u32,\n}";
        let entry = "@compute @workgroup_size(WG)\nfn k(\n    @builtin(workgroup_id) group: vec3<u32>,\n    lane: Lane,\n) {\n    f(lane);";
        let text = format!(
            "struct Row {{ a: u32, }}\n{lane}\nfn f(lane: Lane) {{}}\n{entry}\n}}\n{}\n}}\n",
            entry.replace("fn k", "fn l")
        );
        let text = compose("k", &text, &[], &[], &[]).unwrap();
        let entry = |name: &str| {
            format!(
                "@compute @workgroup_size(WG)\nfn {name}(\n    @builtin(workgroup_id) group: vec3<u32>,\n    \
                 @builtin(subgroup_id) lane_of: u32, @builtin(subgroup_size) lane_size: u32,\n) {{\n    \
                 let lane = Lane(lane_of, lane_size);\n    f(lane);\n}}\n"
            )
        };
        let plain =
            "struct Row { a: u32, }\nstruct Lane {\n    of: u32,\n    size: u32,\n}\nfn f(lane: Lane) {}\n";
        assert_eq!(text, format!("{plain}{}{}", entry("k"), entry("l")));
    }

    #[test]
    fn other_structs_stay() {
        let text = "struct Lane {\n    @builtin(local_invocation_index) index: u32,\n}\n@compute fn k(lane: Lane) {\n}\n";
        assert_eq!(compose("k", text, &[], &[], &[]).unwrap(), text);
    }

    #[test]
    fn unknown_names_are_errors() {
        let module = compose("k", "#import nope", &[MODULES], &[], &[]).unwrap_err();
        assert_eq!(module.to_string(), "kernel k: import of unknown module `nope`");
        let slot = compose("k", "fn k() {}", &[MODULES], &[("N", SlotContent::Size(1))], &[]).unwrap_err();
        assert_eq!(slot.to_string(), "kernel k: no import slot `N`");
    }
}
