//! Value parsers of the laboratory's own flags.

use std::ffi::OsStr;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, ValueEnum};

use super::BenchSuite;

/// Parser of the argument that names a suite of `bench`. For a former suite, its error names the command that took
/// its place.
#[derive(Clone)]
pub(super) struct Suite;

/// Names of former suites, each with the command in its place.
const RETIRED: [(&str, &str); 3] = [
    (
        "offload",
        "bench e2e --plan pools; the disk by itself: cargo run -p pagoda-prefetch --features disk --example disk_speed",
    ),
    ("restart", "bench serve --plan restart"),
    ("turnover", "bench policies --plan turnover"),
];

impl TypedValueParser for Suite {
    type Value = BenchSuite;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<BenchSuite, clap::Error> {
        if let Some((name, now)) = RETIRED.iter().find(|(name, _)| value == *name) {
            let told = format!("bench {name} has another name now: {now}");
            return Err(command.clone().error(ErrorKind::InvalidValue, told));
        }
        EnumValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(BenchSuite::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}
