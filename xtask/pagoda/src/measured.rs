//! Loss and speed of sparse policies as measured on the user's model and device, and the choice among them by a limit of loss.
//!
//! The measurements are kept in a JSON file in the user's cache folder, under everything that moves them: model, KV type, device
//! and driver. `pagoda bench policies --report` writes them, and `--sparse auto:loss=0.5%` goes by them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use attn_kernels::gpu::wgpu;
use models::grouped;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::fetch::{FetchError, ModelCache};
use crate::options::EngineOptions;
use crate::{adapter_records, user_file};

const FILE: &str = "policies.json";

/// Limit of the loss of likelihood against dense attention.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct LossLimit(f64);

impl LossLimit {
    /// A limit from its share of dense attention's mean negative log likelihood: 0.005 is half a per cent. `None` if the
    /// share is negative or not a number.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        (share >= 0.0 && share.is_finite()).then_some(Self(share))
    }

    /// The share.
    #[must_use]
    pub fn share(self) -> f64 {
        self.0
    }
}

impl fmt::Display for LossLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Twelve digits hide that a share in binary is not the decimal that was given.
        write!(f, "{}%", (self.0 * 1e14).round() / 1e12)
    }
}

/// The error of a text that is no valid limit of loss.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("loss is {text:?}; give a percentage of dense attention's likelihood, from 0% up, such as 0.5%")]
pub struct LossLimitError {
    /// The text.
    text: String,
}

impl FromStr for LossLimit {
    type Err = LossLimitError;

    fn from_str(text: &str) -> Result<Self, LossLimitError> {
        let per_cent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        per_cent
            .and_then(|per_cent| Self::new(per_cent / 100.0))
            .ok_or_else(|| LossLimitError { text: text.to_owned() })
    }
}

/// A policy at one length, compared with dense attention on the same model, KV type and device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPolicy {
    /// SPEC of the policy.
    pub spec: String,
    /// Number of tokens of the prompt.
    pub tokens: u32,
    /// Mean negative log likelihood of the text after the prompt, divided by that of dense attention, less 1.
    pub loss: f64,
    /// Standard error of `loss`.
    pub loss_error: f64,
    /// Speed of a request with prompt and answer, as a multiple of dense attention's speed.
    pub speedup: f64,
}

impl MeasuredPolicy {
    /// The loss that a limit is compared with: the measured loss plus its standard error.
    #[must_use]
    pub fn loss_at_most(&self) -> f64 {
        self.loss + self.loss_error
    }

    /// The loss as text, such as `+0.41 ± 0.05 %`.
    #[must_use]
    pub fn say_loss(&self) -> String {
        format!("{:+.2} ± {:.2} %", self.loss * 100.0, self.loss_error * 100.0)
    }

    fn is_sane(&self) -> bool {
        let numbers = [self.loss, self.loss_error, self.speedup];
        numbers.iter().all(|x| x.is_finite()) && self.loss_error >= 0.0 && self.speedup > 0.0
    }
}

impl fmt::Display for MeasuredPolicy {
    /// Describes the measurement, as `quest:page_budget=205: 1.7 times dense at 32,768 tokens, +0.41 ± 0.05 % loss`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, tokens, speedup, .. } = self;
        write!(f, "{spec}: {speedup:.1} times dense at {} tokens, {} loss", grouped(*tokens), self.say_loss())
    }
}

/// The fastest policy at the longest measured length among the policies that keep the limit at this and at each shorter
/// measured length. `None` if none of them is faster than dense attention. Of equally fast ones it is that which loses least,
/// then the first by name. O(measured^2).
#[must_use]
pub fn fastest_within(measured: &[MeasuredPolicy], limit: LossLimit) -> Option<&MeasuredPolicy> {
    let longest = measured.iter().map(|row| row.tokens).max()?;
    let keeps = |row: &&MeasuredPolicy| {
        let mut lengths = measured.iter().filter(|other| other.spec == row.spec);
        lengths.all(|other| other.loss_at_most() <= limit.share())
    };
    let faster = |a: &&MeasuredPolicy, b: &&MeasuredPolicy| -> Ordering {
        let loss = b.loss_at_most().total_cmp(&a.loss_at_most());
        a.speedup.total_cmp(&b.speedup).then(loss).then_with(|| b.spec.cmp(&a.spec))
    };
    let at_longest = measured.iter().filter(|row| row.tokens == longest && row.speedup > 1.0);
    at_longest.filter(keeps).max_by(faster)
}

/// Measurements of policies on one model, KV type and device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Day on which the policies were measured, as `2026-11-26`.
    pub date: String,
    /// Name of the text whose likelihood was measured.
    pub text: String,
    /// The policies, each at every length.
    pub policies: Vec<MeasuredPolicy>,
}

/// All measurements of the user.
#[derive(Debug, Default)]
pub struct Measurements {
    path: Option<PathBuf>,
    by_key: BTreeMap<String, Measurement>,
    damage: Option<String>,
}

/// Names everything that moves the measurements of a model with this fingerprint on an adapter.
#[must_use]
pub fn key(fingerprint: u128, info: &wgpu::AdapterInfo, options: &EngineOptions) -> String {
    format!(
        "{}; {fingerprint:032x}; KV {:?} in blocks of {}; chunks of {}, coop {}, activations {:?}, weights on the device {:?}; \
         version {}",
        adapter_records::key(info),
        options.kv_dtype,
        options.block_size,
        options.chunk,
        options.coop,
        options.activations,
        options.weights_on_gpu,
        env!("CARGO_PKG_VERSION"),
    )
}

impl Measurements {
    /// The measurements in the user's cache folder; none if there is no file.
    #[must_use]
    pub fn of_this_user() -> Self {
        ModelCache::user().map_or_else(|_| Self::default(), |cache| Self::at(cache.dir()))
    }

    /// The measurements in a folder.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let (by_key, damage) = read(&path);
        let damage = damage.map(|reason| format!("{}: {reason}", path.display()));
        Self { path: Some(path), by_key, damage }
    }

    /// Reason why the file, or a part of it, could not be read; `None` if all was read. Lost measurements are
    /// repeated.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// The measurement under a [`key`].
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Measurement> {
        self.by_key.get(key)
    }

    /// Records a measurement in place of the last one.
    pub fn put(&mut self, key: String, measurement: Measurement) {
        self.by_key.insert(key, measurement);
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If there is no cache folder, or it cannot be written.
    pub fn save(&self) -> Result<(), Error> {
        let path = self.path.as_ref().ok_or(FetchError::NoCacheDir)?;
        user_file::replace(path, &self.by_key)
    }
}

/// The valid entries of a file, and the reason why others are not.
fn read(path: &Path) -> (BTreeMap<String, Measurement>, Option<String>) {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Default::default(),
        Err(error) => return (BTreeMap::new(), Some(error.to_string())),
    };
    let mut by_key: BTreeMap<String, Measurement> = match serde_json::from_str(&text) {
        Ok(by_key) => by_key,
        Err(error) => return (BTreeMap::new(), Some(error.to_string())),
    };
    let all = by_key.len();
    by_key.retain(|_, measurement| {
        !measurement.policies.is_empty() && measurement.policies.iter().all(MeasuredPolicy::is_sane)
    });
    let bad = all - by_key.len();
    (by_key, (bad > 0).then(|| format!("{bad} of {all} entries hold numbers that nothing measures")))
}

#[cfg(test)]
mod tests;
