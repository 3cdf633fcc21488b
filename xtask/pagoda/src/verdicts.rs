//! Results of self-tests by adapter and driver, so that engines avoid kernel levels that are wrong there.
//! `cargo xtask doctor --self-test` writes them.
//!
//! The verdicts are kept in a JSON file in the user's cache folder. The driver's version is part of the key,
//! so an updated driver starts without a verdict.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use attn_kernels::Level;
use attn_kernels::gpu::{Gpu, GpuOptions, wgpu};
use models::{FetchError, ModelCache};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::{Note, Notes, user_file};

const FILE: &str = "self-test.json";

/// If this variable is set, to anything, adapters are opened at their best level regardless of verdicts.
pub(crate) const IGNORE: &str = "PAGODA_IGNORE_SELF_TEST";

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
    /// Its level.
    pub level: String,
    /// Difference that was found.
    pub fault: String,
}

impl Verdict {
    /// The best level below every wrong kernel's; `None` if even the baseline is wrong.
    fn usable(&self) -> Option<Level> {
        // A level with an unknown name is from another version of this program, and so are its kernels.
        let lowest = self.wrong.iter().filter_map(|wrong| level(&wrong.level)).min();
        match lowest {
            None => Some(Level::Coop),
            Some(Level::Coop) => Some(Level::Subgroup),
            Some(Level::Subgroup) => Some(Level::Baseline),
            Some(Level::Baseline) => None,
        }
    }
}

/// The level of this name.
fn level(name: &str) -> Option<Level> {
    [Level::Baseline, Level::Subgroup, Level::Coop].into_iter().find(|level| level.name() == name)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tested, wrong } = self;
        if wrong.is_empty() {
            return write!(f, "self-test passed under this driver: {tested} kernel variants are right");
        }
        let names: Vec<&str> = wrong.iter().map(|wrong| &*wrong.variant).collect();
        let then = match self.usable() {
            Some(level) => format!("the engine keeps to level {level}"),
            None => "the engine refuses this adapter".into(),
        };
        write!(
            f,
            "self-test FAILED under this driver: {} of {tested} kernel variants are wrong ({}); {then}",
            wrong.len(),
            names.join(", ")
        )
    }
}

/// All verdicts of the user.
#[derive(Debug, Default)]
pub struct Verdicts {
    path: Option<PathBuf>,
    by_adapter: BTreeMap<String, Verdict>,
}

/// Adapter, graphics API and driver with its version.
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

    fn at(folder: &Path) -> Self {
        let path = folder.join(FILE);
        Self { by_adapter: user_file::read(&path), path: Some(path) }
    }

    /// The verdict on an adapter with its present driver.
    #[must_use]
    pub fn get(&self, info: &wgpu::AdapterInfo) -> Option<&Verdict> {
        self.by_adapter.get(&key(info))
    }

    /// Records a verdict in place of the last one.
    pub fn put(&mut self, info: &wgpu::AdapterInfo, verdict: Verdict) {
        self.by_adapter.insert(key(info), verdict);
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

/// Opens an adapter at the best level without a kernel known to be wrong there.
///
/// # Errors
/// Those of [`Gpu::open`], and if even the baseline level is wrong.
pub fn open(options: &GpuOptions, notes: &Notes) -> Result<Gpu, Error> {
    let ignore = std::env::var_os(IGNORE).is_some_and(|value| !value.is_empty());
    open_with(options, &Verdicts::of_this_user(), ignore, notes)
}

fn open_with(options: &GpuOptions, verdicts: &Verdicts, ignore: bool, notes: &Notes) -> Result<Gpu, Error> {
    let gpu = Gpu::open(options)?;
    let Some(verdict) = verdicts.get(gpu.info()).filter(|verdict| !verdict.wrong.is_empty()) else {
        return Ok(gpu);
    };
    let adapter = gpu.info().name.clone();
    let tell = |verdict| notes.tell(&Note::SelfTest { adapter: adapter.clone(), verdict });
    if ignore {
        tell(format!("{verdict}, but {IGNORE} is set"));
        return Ok(gpu);
    }
    match verdict.usable() {
        None => Err(Error::Adapter { adapter, verdict: verdict.clone() }),
        Some(level) if level >= gpu.level() => Ok(gpu),
        Some(level) => {
            tell(verdict.to_string());
            drop(gpu);
            Ok(Gpu::open(&options.clone().level(level))?)
        }
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
    fn the_level_below_the_lowest_wrong_one_is_used() {
        let usable = |levels: &[&str]| verdict(levels).usable();
        assert_eq!(usable(&[]), Some(Level::Coop));
        assert_eq!(usable(&["coop"]), Some(Level::Subgroup));
        assert_eq!(usable(&["coop", "subgroup"]), Some(Level::Baseline));
        assert_eq!(usable(&["subgroup", "baseline"]), None);
        assert_eq!(usable(&["wave"]), Some(Level::Coop));
    }

    #[test]
    fn verdicts_are_sentences() {
        insta::assert_snapshot!(verdict(&[]), @"self-test passed under this driver: 80 kernel variants are right");
        insta::assert_snapshot!(verdict(&["coop"]), @"self-test FAILED under this driver: 1 of 80 kernel variants are wrong (top_k-coop); the engine keeps to level subgroup");
        insta::assert_snapshot!(verdict(&["baseline"]), @"self-test FAILED under this driver: 1 of 80 kernel variants are wrong (top_k-baseline); the engine refuses this adapter");
    }

    /// Needs an adapter; `ATTN_GPU=skip` skips it.
    #[test]
    fn an_adapter_opens_at_a_level_that_is_right() {
        if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
            return;
        }
        let options = GpuOptions::new(attn_kernels::gpu::Checks::Off);
        let best = Gpu::open(&options).unwrap();
        let after = |levels: &[&str], ignore| {
            let mut verdicts = Verdicts::default();
            verdicts.put(best.info(), verdict(levels));
            open_with(&options, &verdicts, ignore, &Notes::default()).map(|gpu| gpu.level())
        };
        assert_eq!(after(&[], false).unwrap(), best.level());
        assert_eq!(after(&["subgroup"], false).unwrap(), Level::Baseline);
        assert_eq!(after(&["subgroup"], true).unwrap(), best.level());
        let refused = after(&["baseline"], false).unwrap_err().to_string();
        assert!(refused.contains("the engine refuses this adapter"), "{refused}");
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
        // A file of another format counts as none.
        std::fs::write(folder.path().join(FILE), "[1]").unwrap();
        assert_eq!(Verdicts::at(folder.path()).get(&info("1")), None);
    }
}
