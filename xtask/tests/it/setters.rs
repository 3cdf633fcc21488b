//! Options that people outside of a crate can set: `#[non_exhaustive]` keeps them from writing a struct out, so that what no
//! constructor takes needs a setter.

use std::fs;

use xtask::tree;

use super::extensible::{CRATES, is_options};

/// Fields that no constructor takes and no setter sets, each with the reason; `*` stands for all of a struct.
const EXCEPTIONS: [(&str, &str, &str); 1] = [(
    "DecoderConfig",
    "*",
    "checkpoints describe it; what is made by hand is assigned to `DecoderConfig::plain`",
)];

/// Public associated functions and methods of a type as `name(parameters) -> result`, in formatted source; for constants and a
/// default, functions without parameters.
fn signatures(text: &str, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let of_type = |head: &str| {
            line.strip_prefix(head).is_some_and(|rest| rest.split([' ', '<']).next() == Some(name))
        };
        if of_type("impl Default for ") {
            found.push("default() -> Self".to_owned());
        }
        if !of_type("impl ") && !of_type("impl<'a> ") {
            continue;
        }
        let mut body = lines.by_ref().take_while(|line| *line != "}").map(str::trim);
        while let Some(line) = body.next() {
            if line.starts_with("pub const ") && line.contains(": Self") {
                found.push("constant() -> Self".to_owned());
            }
            let rest = line.strip_prefix("pub const fn ").or_else(|| line.strip_prefix("pub fn "));
            let Some(rest) = rest else { continue };
            let mut signature = rest.to_owned();
            while !signature.ends_with('{') {
                signature += body.next().expect("a function has a body");
            }
            found.push(signature);
        }
    }
    found
}

/// Fields of the non-exhaustive option structs of a crate's source that nobody else can set, as (struct, field); `*` where nobody
/// else can make the struct.
fn unset(text: &str) -> Vec<(&str, &str)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.split([' ', '<']).next())
        else {
            continue;
        };
        let above: Vec<_> =
            lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '/'])).collect();
        if !is_options(name) || !above.iter().any(|line| **line == "#[non_exhaustive]") {
            continue;
        }
        let derives = |name| above.iter().any(|line| line.starts_with("#[derive(") && line.contains(name));
        let body: Vec<_> = lines[at + 1..].iter().take_while(|line| **line != "}").collect();
        let mut fields = Vec::new();
        for (above, line) in [&""].into_iter().chain(body.iter().copied()).zip(&body) {
            let field = line.strip_prefix("pub ").and_then(|rest| rest.split(':').next());
            // `derive_setters` makes one for every public field that does not say otherwise.
            fields.extend(field.filter(|_| !derives("Setters") || *above == "#[setters(skip)]"));
        }
        let signatures = signatures(text, name);
        let builds =
            |signature: &&String| signature.contains("-> Self") || signature.contains("-> Result<Self");
        let (setters, constructors): (Vec<_>, Vec<_>) = signatures
            .iter()
            .filter(builds)
            .partition(|signature| signature.contains("(self") || signature.contains("(mut self"));
        if !derives("Default") && constructors.is_empty() {
            found.push((name, "*"));
            continue;
        }
        let sets = |field: &str| {
            let of_field = |name: &str| name == field || name.strip_prefix("without_") == Some(field);
            setters.iter().any(|setter| setter.split('(').next().is_some_and(of_field))
                || constructors.iter().any(|constructor| {
                    [format!("({field}: "), format!(" {field}: "), format!(",{field}: ")]
                        .iter()
                        .any(|parameter| constructor.contains(parameter))
                })
        };
        found.extend(fields.into_iter().filter(|field| !sets(field)).map(|field| (name, field)));
    }
    found
}

#[test]
fn options_can_be_set_from_outside() {
    let mut faults = Vec::new();
    let mut used = Vec::new();
    for folder in CRATES {
        let source = tree::root().join(folder).join("src");
        let files =
            tree::files(&source).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
        let text: String = files.map(|path| fs::read_to_string(source.join(path)).unwrap()).collect();
        for (name, field) in unset(&text) {
            let exempt = EXCEPTIONS.iter().find(|(of, only, _)| *of == name && ["*", field].contains(only));
            match exempt {
                Some(exempt) => used.push(exempt),
                None => faults.push(format!("{folder}: {name}::{field} has no setter")),
            }
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
    let stale: Vec<_> = EXCEPTIONS.iter().filter(|exempt| !used.contains(exempt)).collect();
    assert!(stale.is_empty(), "{stale:?} need no exception");
}

#[test]
fn a_field_without_a_setter_is_caught() {
    let text = "
#[non_exhaustive]
pub struct GoodOptions {
    pub a: u32,
    pub b: u32,
    pub text: bool,
}

impl GoodOptions {
    pub fn new(
        a: u32,
    ) -> Self {
    }

    pub const fn b(self, b: u32) -> Self {
    }

    pub fn without_text(mut self) -> Self {
    }
}

#[derive(Default, Setters)]
#[non_exhaustive]
pub struct DerivedConfig {
    pub a: u32,
    #[setters(skip)]
    pub b: u32,
    #[setters(into)]
    pub c: u32,
}

#[derive(Default)]
#[non_exhaustive]
pub struct BadConfig {
    pub a: u32,
}

#[non_exhaustive]
pub struct WorseConfig {
    pub a: u32,
}

pub struct OtherConfig {
    pub a: u32,
}
";
    assert_eq!(unset(text), [("DerivedConfig", "b"), ("BadConfig", "a"), ("WorseConfig", "*")]);
}
