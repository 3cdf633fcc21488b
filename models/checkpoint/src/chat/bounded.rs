//! Rendering within a memory limit, since a template is a program by the author of the checkpoint.
//!
//! Every text and list that a template makes is charged to a budget, those whose size its operands do not bound before they are
//! made: `~`, `+` and `*`, slices, filters, methods, and what is written. Literal text, which a loop may repeat, is bounded by
//! the instructions that are left to it.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::machinery::{self, CompiledTemplate, Instruction, Instructions, TemplateConfig};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Maximum number of bytes of all texts and lists of one rendering: the prompt, and all intermediate texts.
const MAX_BYTES: usize = 1 << 30;

/// Maximum number of bytes of one text or list; no conversation comes near it. A text that grows piece by piece is
/// refused before it exceeds the limit, other results possibly only after they are computed.
const MAX_TEXT: usize = 64 << 20;

/// Maximum number of instructions of one rendering: far more than any conversation needs.
const FUEL: u64 = 10_000_000;

/// Number of bytes that are charged for each element of a list.
const ELEMENT_BYTES: usize = 24;

/// Filters whose results may be at least as large as their arguments.
const FILTERS: [&str; 28] = [
    "batch",
    "capitalize",
    "chain",
    "count",
    "dictsort",
    "e",
    "escape",
    "format",
    "groupby",
    "indent",
    "items",
    "join",
    "lines",
    "list",
    "lower",
    "pprint",
    "replace",
    "reverse",
    "slice",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "trim",
    "unique",
    "upper",
    "urlencode",
];

/// Filters that read the elements of a value, and not its text.
const OF_LISTS: [&str; 12] = [
    "batch", "chain", "count", "dictsort", "groupby", "items", "list", "reverse", "slice", "sort", "unique",
    "zip",
];

/// Operators, each with the filter that replaces it. The filters have names that no template can write.
const OPERATORS: [(&str, &str); 3] = [("a + b", "+"), ("a * b", "*"), ("a[b:c:d]", "[:]")];

/// Compiles a template with a name and a source.
pub(super) fn compile<'s>(
    (name, source): (&'s str, &'s str),
    syntax: &SyntaxConfig,
) -> Result<CompiledTemplate<'s>, Error> {
    let default_auto_escape = Arc::new(|_: &str| AutoEscape::None);
    CompiledTemplate::new(
        name,
        source,
        &TemplateConfig { syntax_config: syntax.clone(), default_auto_escape },
    )
}

/// Renders `source` in `environment`, which has everything but limits.
pub(super) fn render(
    environment: &Arc<Environment<'static>>,
    source: (&str, &str),
    syntax: &SyntaxConfig,
    variables: Value,
) -> Result<String, Error> {
    let mut template = compile(source, syntax)?;
    let mut literal = charge_operators(&mut template.instructions);
    for block in template.blocks.values_mut() {
        literal = literal.max(charge_operators(block));
    }
    let mut limited = Environment::clone(environment);
    limited.set_fuel(Some(FUEL.min((MAX_BYTES / literal.max(1)) as u64)));
    Budget(Arc::new(AtomicUsize::new(MAX_BYTES))).limit(&mut limited, environment);
    let mut text = String::new();
    let out = &mut machinery::make_string_output(&mut text);
    machinery::eval(&limited, &template.instructions, variables, &template.blocks, out, AutoEscape::None)?;
    Ok(text)
}

/// Replaces operators with filters that charge the budget for the texts that they make. Returns the length of the
/// longest literal text.
fn charge_operators(instructions: &mut Instructions<'_>) -> usize {
    let filter = |name, arguments| Instruction::ApplyFilter(name, Some(arguments), u8::MAX);
    let mut literal = 0;
    for at in 0.. {
        let Some(instruction) = instructions.get_mut(at) else { break };
        match instruction {
            Instruction::StringConcat => *instruction = filter("~", 2),
            Instruction::Add => *instruction = filter("+", 2),
            Instruction::Mul => *instruction = filter("*", 2),
            Instruction::Slice => *instruction = filter("[:]", 4),
            Instruction::EmitRaw(text) => literal = literal.max(text.len()),
            _ => {}
        }
    }
    literal
}

/// Number of bytes that a rendering may still use; clones share it.
#[derive(Clone)]
struct Budget(Arc<AtomicUsize>);

impl Budget {
    fn charge(&self, bytes: usize) -> Result<(), Error> {
        self.charge_piece(0, bytes)
    }

    /// Charges `bytes` bytes that are added to a text of `length` bytes.
    fn charge_piece(&self, length: usize, bytes: usize) -> Result<(), Error> {
        if length.saturating_add(bytes) > MAX_TEXT {
            let needs = format!("one text or list would need more than {MAX_TEXT} bytes");
            return Err(Error::new(ErrorKind::InvalidOperation, needs));
        }
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        let spent = |_| {
            Error::new(ErrorKind::InvalidOperation, format!("the texts need more than {MAX_BYTES} bytes"))
        };
        left.map(drop).map_err(spent)
    }

    /// Returns the concatenated text of values.
    fn text(&self, values: &[&Value]) -> Result<String, Error> {
        let mut text = Text { budget: self, text: String::new() };
        let written = values.iter().try_for_each(|value| write!(text, "{value}"));
        match written {
            Ok(()) => Ok(text.text),
            // Values fail only where the budget does.
            Err(fmt::Error) => self.charge(usize::MAX).map(|()| String::new()),
        }
    }

    /// Charges the size of a new value.
    fn charge_value(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.charge(text.len()),
            None => self.charge(value.len().unwrap_or(0).saturating_mul(ELEMENT_BYTES)),
        }
    }

    fn limit(&self, limited: &mut Environment<'_>, plain: &Arc<Environment<'static>>) {
        let budget = self.clone();
        limited.set_formatter(move |out, state, value| {
            match value.as_str() {
                Some(text) => budget.charge(text.len())?,
                None => drop(budget.text(&[value])?),
            }
            escape_formatter(out, state, value)
        });
        let budget = self.clone();
        limited
            .add_filter("~", move |a: &Value, b: &Value| Ok::<_, Error>(Value::from(budget.text(&[a, b])?)));
        for (expression, name) in OPERATORS {
            let (budget, plain) = (self.clone(), Arc::clone(plain));
            limited
                .add_filter(name, move |operands: Rest<Value>| budget.operate(&plain, expression, &operands));
        }
        let budget = self.clone();
        limited.add_filter("tojson", move |value: Value, options: Kwargs| {
            let mut out = Json { budget: &budget, bytes: Vec::new() };
            super::write_json(&value, &options, &mut out)?;
            Ok::<_, Error>(Value::from(String::from_utf8(out.bytes).expect("serde_json writes UTF-8")))
        });
        for name in FILTERS {
            let (budget, plain) = (self.clone(), Arc::clone(plain));
            limited.add_filter(name, move |arguments: Rest<Value>| {
                budget.charge_filter(name, &arguments)?;
                let result = plain.empty_state().apply_filter(name, &arguments)?;
                budget.charge_value(&result)?;
                Ok::<_, Error>(result)
            });
        }
        let budget = self.clone();
        limited.set_unknown_method_callback(move |state, value, method, arguments| {
            let mut all: Vec<Value> = std::iter::once(value).chain(arguments).cloned().collect();
            if method == "join" {
                all.reverse();
            }
            budget.charge_filter(method, &all)?;
            let result = unknown_method_callback(state, value, method, arguments)?;
            budget.charge_value(&result)?;
            Ok(result)
        });
    }

    /// Returns the result of an operator.
    fn operate(
        &self,
        plain: &Environment<'static>,
        expression: &str,
        operands: &[Value],
    ) -> Result<Value, Error> {
        let operand = |at: usize| operands.get(at).cloned().unwrap_or_default();
        let (a, b) = (operand(0), operand(1));
        if expression == "a + b" && a.as_str().is_some() && b.as_str().is_some() {
            return Ok(Value::from(self.text(&[&a, &b])?));
        }
        if expression == "a * b" {
            for (value, times) in [(&a, &b), (&b, &a)] {
                let bytes = value.as_str().map_or(0, str::len);
                self.charge(bytes.saturating_mul(number(Some(times))))?;
            }
        }
        let value = plain
            .compile_expression(expression)?
            .eval(context! { a, b, c => operand(2), d => operand(3) })?;
        self.charge_value(&value)?;
        Ok(value)
    }

    /// Charges the expected result of a filter, which is applied to the first of its arguments.
    fn charge_filter(&self, name: &str, arguments: &[Value]) -> Result<(), Error> {
        let Some((first, rest)) = arguments.split_first() else { return Ok(()) };
        let length = |at: usize| rest.get(at).and_then(Value::as_str).map_or(0, str::len);
        if first.as_str().is_none() {
            self.charge(first.len().unwrap_or(0).saturating_mul(ELEMENT_BYTES))?;
        }
        match name {
            "join" | "sum" => {
                let items: Vec<Value> = first.try_iter()?.collect();
                self.text(&items.iter().collect::<Vec<_>>())?;
                self.charge(items.len().saturating_mul(length(0)))
            }
            "list" | "split" | "lines" | "splitlines" => {
                self.charge(first.as_str().map_or(0, str::len).saturating_mul(ELEMENT_BYTES))
            }
            _ if OF_LISTS.contains(&name) => Ok(()),
            "replace" => {
                let (text, old) =
                    (self.text(&[first])?, rest.first().and_then(Value::as_str).unwrap_or_default());
                self.charge(text.matches(old).count().saturating_mul(length(1)))
            }
            "indent" => {
                let lines = self.text(&[first])?.lines().count();
                self.charge(lines.saturating_mul(number(rest.first())))
            }
            "format" => {
                self.text(&arguments.iter().collect::<Vec<_>>())?;
                let text = first.as_str().unwrap_or_default();
                let widths = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
                let widths = widths.map(|digits| digits.parse().unwrap_or(MAX_BYTES));
                // A width may also come as an argument.
                let widths =
                    widths.chain(rest.iter().map(|value| number(Some(value))).filter(|_| text.contains('*')));
                self.charge(widths.fold(0, usize::saturating_add))
            }
            "center" | "ljust" | "rjust" | "zfill" => self.charge(number(rest.first())),
            _ => self.text(&[first]).map(drop),
        }
    }
}

/// Converts an argument to a number; 0 if it is not one.
fn number(value: Option<&Value>) -> usize {
    value.and_then(Value::as_usize).unwrap_or(0)
}

/// Text of a rendering whose bytes are charged to the budget as it grows.
struct Text<'a> {
    budget: &'a Budget,
    text: String,
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.budget.charge_piece(self.text.len(), piece.len()).map_err(|_| fmt::Error)?;
        self.text.push_str(piece);
        Ok(())
    }
}

/// JSON of a rendering whose bytes are charged to the budget as it grows.
struct Json<'a> {
    budget: &'a Budget,
    bytes: Vec<u8>,
}

impl io::Write for Json<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.budget.charge_piece(self.bytes.len(), piece.len()).map_err(io::Error::other)?;
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
