//! Records of a user's adapters under their drivers: verdicts of self-tests, and the sizes at which products change kernels.
//!
//! They are kept in a JSON file in the user's cache folder. The driver's version is part of the key, so an updated driver starts
//! without records.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use attn_kernels::gpu::{Gpu, wgpu};
use attn_kernels::{NamedVariant, verdicts};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::fetch::{FetchError, ModelCache};
use crate::kept_tuning::KeptTuning;
use crate::user_file;

const FILE: &str = "self-test.json";

/// Result of a self-test on one adapter under one driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Number of variants compared.
    pub tested: usize,
    /// The wrong variants.
    pub wrong: Vec<WrongKernel>,
}

/// A kernel variant that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongKernel {
    /// The variant.
    pub variant: String,
    /// Level of the variant.
    pub level: String,
    /// Difference that was found.
    pub fault: String,
}

impl Verdict {
    /// The verdict on each variant of this program that the device runs. Recorded names that this program lacks come
    /// from another version, and are ignored.
    pub(crate) fn of_variants(&self, gpu: &Gpu) -> verdicts::Verdicts {
        let all = attn_kernels::variants().into_iter().chain(models::kernel::variants());
        let is = |wrong: &WrongKernel, named: &NamedVariant| {
            wrong.variant == named.name && wrong.level == named.level().name()
        };
        let right = |named: &NamedVariant| !self.wrong.iter().any(|wrong| is(wrong, named));
        let here = all.filter(|named| gpu.profile().runs(&named.variant));
        verdicts::Verdicts::new(here.map(|named| (named.clone(), right(&named))))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tested, wrong } = self;
        if wrong.is_empty() {
            return write!(f, "self-test passed under this driver: {tested} kernel variants are right");
        }
        let names: Vec<&str> = wrong.iter().map(|wrong| &*wrong.variant).collect();
        write!(
            f,
            "self-test FAILED under this driver: {} of {tested} kernel variants are wrong ({})",
            wrong.len(),
            names.join(", ")
        )
    }
}

/// All that is known about an adapter under one driver.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Known {
    #[serde(flatten)]
    verdict: Option<Verdict>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tuning: Option<KeptTuning>,
}

/// Verdicts on all adapters that the user has tested.
#[derive(Debug, Default)]
pub struct Verdicts {
    path: Option<PathBuf>,
    by_adapter: BTreeMap<String, Known>,
}

/// Key of an adapter's record: the adapter, the graphics API, and the driver with its version.
pub(crate) fn key(info: &wgpu::AdapterInfo) -> String {
    format!("{}, {}, {} {}", info.name, info.backend, info.driver, info.driver_info)
}

impl Verdicts {
    /// The verdicts in the user's cache folder; none if there is no file, or it has another format.
    #[must_use]
    pub fn of_this_user() -> Self {
        match ModelCache::user() {
            Ok(cache) => Self::at(cache.dir()),
            Err(_) => Self::default(),
        }
    }

    pub(crate) fn at(folder: &Path) -> Self {
        let path = folder.join(FILE);
        Self { by_adapter: user_file::read(&path), path: Some(path) }
    }

    /// The verdict on an adapter with its present driver.
    #[must_use]
    pub fn get(&self, info: &wgpu::AdapterInfo) -> Option<&Verdict> {
        self.by_adapter.get(&key(info))?.verdict.as_ref()
    }

    /// Sizes at which matrix products switch to another kernel, on an adapter with its present driver; `None` unless
    /// they were measured with the kernels of this program.
    #[must_use]
    pub fn tuning(&self, info: &wgpu::AdapterInfo) -> Option<&KeptTuning> {
        self.by_adapter.get(&key(info))?.tuning.as_ref().filter(|tuning| tuning.is_current())
    }

    /// Records a verdict in place of the last one.
    pub fn put(&mut self, info: &wgpu::AdapterInfo, verdict: Verdict) {
        self.by_adapter.entry(key(info)).or_default().verdict = Some(verdict);
    }

    /// Records the sizes at which matrix products switch to another kernel, in place of the last record.
    pub fn put_tuning(&mut self, info: &wgpu::AdapterInfo, tuning: KeptTuning) {
        self.by_adapter.entry(key(info)).or_default().tuning = Some(tuning);
    }

    /// Whether there is a file to write.
    pub(crate) fn can_be_kept(&self) -> bool {
        self.path.is_some()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If there is no cache folder, or it cannot be written.
    pub fn save(&self) -> Result<(), Error> {
        let path = self.path.as_ref().ok_or(FetchError::NoCacheDir)?;
        user_file::replace(path, &self.by_adapter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(levels: &[&str]) -> Verdict {
        let wrong = |level: &&str| WrongKernel {
            variant: format!("top_k-{level}"),
            level: (*level).into(),
            fault: "rows: element 3".into(),
        };
        Verdict { tested: 80, wrong: levels.iter().map(wrong).collect() }
    }

    #[test]
    fn verdicts_are_sentences() {
        insta::assert_snapshot!(verdict(&[]), @"self-test passed under this driver: 80 kernel variants are right");
        insta::assert_snapshot!(verdict(&["coop"]), @"self-test FAILED under this driver: 1 of 80 kernel variants are wrong (top_k-coop)");
    }

    #[test]
    fn a_file_keeps_verdicts_by_driver() {
        let folder = tempfile::tempdir().unwrap();
        let info = |driver: &str| wgpu::AdapterInfo {
            driver_info: driver.into(),
            ..wgpu::AdapterInfo::new(wgpu::DeviceType::Cpu, wgpu::Backend::Vulkan)
        };
        let mut verdicts = Verdicts::at(&folder.path().join("new"));
        assert_eq!(verdicts.get(&info("1")), None);
        verdicts.put(&info("1"), verdict(&["coop"]));
        verdicts.save().unwrap();
        let read = Verdicts::at(&folder.path().join("new"));
        assert_eq!(read.get(&info("1")), Some(&verdict(&["coop"])));
        assert_eq!(read.get(&info("2")), None);
        // Files of versions that measured nothing have verdicts alone.
        let old = format!(r#"{{ "{}": {{ "tested": 80, "wrong": [] }} }}"#, key(&info("2")));
        std::fs::write(folder.path().join(FILE), old).unwrap();
        assert_eq!(Verdicts::at(folder.path()).get(&info("2")), Some(&verdict(&[])));
        // A file of another format counts as none.
        std::fs::write(folder.path().join(FILE), "[1]").unwrap();
        assert_eq!(Verdicts::at(folder.path()).get(&info("1")), None);
    }
}
