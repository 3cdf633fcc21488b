//! Value parsers: each returns the value, or an error that says what is wrong and which values are allowed;
//! clap adds the flag's name.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::str::FromStr;

use anyhow::anyhow;
use clap::builder::{PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command};
use models::{Dtype, RandomError, RandomSpec};
use pagoda::{Sparse, TokenBias, UnknownName};
use prefetch::spec::{SpecError, TierSpec, parse_bytes};
use sparse_select::presets::parse_presets;
use sparse_select::{Registry, Spec};
use strum::VariantNames;

/// A value of a library's enum, by its name.
pub(super) fn named<T>() -> impl TypedValueParser<Value = T>
where
    T: VariantNames + FromStr<Err = UnknownName> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::from(T::VARIANTS).try_map(|name| name.parse::<T>())
}

/// Tokens in a KV block.
pub(super) fn block_size(text: &str) -> Result<u32, String> {
    let n: u32 = text.parse().map_err(|_| format!("{text} is not a whole number; {BLOCK_SIZES}"))?;
    if n.is_power_of_two() && (4..=256).contains(&n) { Ok(n) } else { Err(BLOCK_SIZES.to_string()) }
}

const BLOCK_SIZES: &str = "a block holds a power of two of tokens, from 4 to 256";

/// Parser of a tier spec. Errors of clap repeat a wrong value; this parser omits a value that holds a password or a
/// key.
#[derive(Clone)]
pub(super) struct Tiers;

impl TypedValueParser for Tiers {
    type Value = TierSpec;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<TierSpec, clap::Error> {
        match value.to_string_lossy().parse::<TierSpec>() {
            Err(secret @ (SpecError::Credentials | SpecError::KeySource)) => {
                let told = format!("wrong value for '--kv-tiers <SPEC>': {secret}");
                Err(command.clone().error(ErrorKind::ValueValidation, told))
            }
            _ => {
                let parser = StringValueParser::new().try_map(|text| text.parse::<TierSpec>());
                parser.parse_ref(command, arg, value)
            }
        }
    }
}

/// A seed: any 64 bits.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a seed is a whole number from 0 to {}", u64::MAX))
}

/// A finite temperature, 0 or more.
pub(super) fn temperature(text: &str) -> Result<f32, String> {
    float(text, "a temperature is a finite number from 0 up", |t| t.is_finite() && t >= 0.0)
}

/// A probability mass in (0, 1].
pub(super) fn top_p(text: &str) -> Result<f32, String> {
    float(text, "top-p is more than 0 and at most 1", |p| p > 0.0 && p <= 1.0)
}

/// A probability ratio in [0, 1].
pub(super) fn min_p(text: &str) -> Result<f32, String> {
    float(text, "min-p is from 0 to 1", |p| (0.0..=1.0).contains(&p))
}

/// A penalty that divides and multiplies: above 0.
pub(super) fn repetition(text: &str) -> Result<f32, String> {
    float(text, "a repetition penalty is a finite number above 0", |r| r.is_finite() && r > 0.0)
}

/// A finite number.
pub(super) fn finite(text: &str) -> Result<f32, String> {
    float(text, "give a finite number", f32::is_finite)
}

/// A finite number from 0 up.
pub(super) fn not_negative(text: &str) -> Result<f32, String> {
    float(text, "give a finite number from 0 up", |x| x.is_finite() && x >= 0.0)
}

/// A finite number from 1 up.
pub(super) fn at_least_one(text: &str) -> Result<f32, String> {
    float(text, "give a finite number from 1 up", |x| x.is_finite() && x >= 1.0)
}

/// A token and the addend of its logit, `ID=X`.
pub(super) fn token_bias(text: &str) -> Result<TokenBias, String> {
    const FORM: &str = "give a token id and a finite number, such as 13=-2.5";
    let (token, bias) = text.split_once('=').ok_or(FORM)?;
    Ok(TokenBias { token: token.parse().map_err(|_| FORM)?, bias: float(bias, FORM, f32::is_finite)? })
}

fn float(text: &str, limit: &str, allowed: impl Fn(f32) -> bool) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| format!("not a number; {limit}"))?;
    if allowed(value) { Ok(value) } else { Err(limit.to_string()) }
}

/// A number of bytes, as [`parse_bytes`] reads it.
pub fn memory(text: &str) -> Result<u64, String> {
    const LIMIT: &str =
        "give whole bytes from 1 to 2^64 - 1, or whole KiB, MiB or GiB (KB, MB, GB), such as 512MiB";
    parse_bytes(text).ok_or_else(|| LIMIT.to_owned())
}

/// Rejects every policy. [`super::Cli::try_parse_with`] replaces this parser with one that knows the policies of a
/// registry.
pub fn no_policy(_: &str) -> Result<Sparse, &'static str> {
    Err("no registry of policies is given; read the arguments with Cli::try_parse_with")
}

/// A sparse-attention policy of `registry`: its SPEC, or the path of a preset file with the published keys.
pub fn policy_of(registry: &Registry, text: &str) -> anyhow::Result<Sparse> {
    let spec = if text.ends_with(".ron") { preset(text)? } else { text.parse()? };
    Ok(Sparse::new(registry, &spec)?)
}

/// Reads a preset file, which must hold exactly one policy.
fn preset(path: &str) -> anyhow::Result<Spec> {
    let text = fs::read_to_string(path)?;
    let specs = parse_presets(&text).map_err(|error| match error.source() {
        Some(source) => anyhow!("{error}: {source}"),
        None => error.into(),
    })?;
    let count = specs.len();
    let [spec] = <[Spec; 1]>::try_from(specs)
        .map_err(|_| anyhow!("{count} policies in a preset where one is to run"))?;
    Ok(spec)
}

/// A model of random weights.
pub(super) fn random(text: &str) -> Result<RandomSpec, RandomError> {
    RandomSpec::parse(text)
}

/// A type that weights can be quantised to at load.
pub(super) fn quantize(text: &str) -> Result<Dtype, String> {
    let found = Dtype::TARGETS.into_iter().find(|dtype| dtype.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| {
        let names = Dtype::TARGETS.map(|dtype| dtype.name().to_lowercase()).join(" ");
        format!("weights are quantised to one of {names}")
    })
}

/// A number above 1, or `inf`.
pub(super) fn above_one(text: &str) -> Result<f64, String> {
    let number = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if number > 1.0 { Ok(number) } else { Err(format!("{text} is not above 1")) }
}

/// A rate a second: a finite number above 0.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if number > 0.0 && number.is_finite() { Ok(number) } else { Err(format!("{text} is not above 0")) }
}

/// An address that begins with its scheme.
pub(super) fn url(text: &str) -> Result<String, String> {
    let known = text.starts_with("http://") || text.starts_with("https://");
    if known { Ok(text.to_owned()) } else { Err(format!("{text:?} does not begin with http:// or https://")) }
}

/// Text of at least one character.
pub fn non_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("the text is empty; give at least one character".to_string())
    } else {
        Ok(text.to_string())
    }
}
