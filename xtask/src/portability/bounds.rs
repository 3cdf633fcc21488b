//! The committed bounds: spills that each compiler may have, and kernels that it refuses already.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::DeviceKernels;
use super::report::KernelRow;
use crate::tree;

/// The file, relative to the sources.
pub(super) const FILE: &str = "xtask/portability/bounds.ron";

/// Bounds by device.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Bounds {
    /// Bounds by id.
    pub(super) devices: BTreeMap<String, Bound>,
}

/// Bounds of one device.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bound {
    /// Compiler with which the bounds were measured.
    pub(super) compiler: String,
    /// Number of spills by kernel; kernels without spills are omitted.
    pub(super) spills: BTreeMap<String, u64>,
    /// Kernels that are refused.
    pub(super) refused: Vec<String>,
}

impl Bounds {
    /// The bounds in the sources.
    ///
    /// # Errors
    /// If the file is not there or not readable.
    pub(super) fn committed() -> Result<Self> {
        let path = tree::checkout()?.join(FILE);
        let text =
            fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        ron::from_str(&text).with_context(|| format!("{}: cannot be understood", path.display()))
    }

    /// The tightest bounds that `outcomes` keep.
    pub(super) fn of(outcomes: &[DeviceKernels]) -> Self {
        let bound = |outcome: &DeviceKernels| {
            let refused = outcome.rows.iter().filter(|row| row.refused.is_some());
            let spilling =
                outcome.rows.iter().filter_map(|row| Some((row.kernel.clone(), row.figures.spills?)));
            Bound {
                compiler: outcome.compiler.clone(),
                spills: spilling.filter(|(_, spills)| *spills > 0).collect(),
                refused: refused.map(|row| row.kernel.clone()).collect(),
            }
        };
        let devices = outcomes.iter().map(|outcome| (outcome.device.id.to_owned(), bound(outcome)));
        Self { devices: devices.collect() }
    }

    /// The text of the file.
    ///
    /// # Errors
    /// None in practice.
    pub(super) fn to_text(&self) -> Result<String> {
        let header = "// Written by `cargo xtask portability --write`: spills that compilers may have, and kernels that they refuse.\n";
        let pretty = ron::ser::PrettyConfig::new().indentor("    ");
        Ok(format!("{header}{}\n", ron::ser::to_string_pretty(self, pretty)?))
    }

    /// Says which kernels are refused, or spill more than they may with the compiler that the bounds are of.
    pub(super) fn faults(&self, outcomes: &[DeviceKernels]) -> Vec<String> {
        self.found(outcomes, |bound, outcome, row| {
            row.refused.is_some() || bound.compiler == outcome.compiler
        })
    }

    /// Says which kernels spill more than the bounds, which are of another version of the compiler: that is no fault of theirs.
    pub(super) fn notes(&self, outcomes: &[DeviceKernels]) -> Vec<String> {
        self.found(outcomes, |bound, outcome, row| {
            row.refused.is_none() && bound.compiler != outcome.compiler
        })
    }

    fn found(
        &self,
        outcomes: &[DeviceKernels],
        counts: impl Fn(&Bound, &DeviceKernels, &KernelRow) -> bool,
    ) -> Vec<String> {
        let none = Bound::default();
        let mut faults = Vec::new();
        for outcome in outcomes {
            let bound = self.devices.get(outcome.device.id).unwrap_or(&none);
            let measured = match bound.compiler == outcome.compiler {
                true => String::new(),
                false => format!(" (the bound is of {:?}, this is {:?})", bound.compiler, outcome.compiler),
            };
            let rows = outcome.rows.iter().filter(|row| counts(bound, outcome, row));
            let found = rows.filter_map(|row| bound.fault(row));
            faults.extend(found.map(|fault| format!("{}: {fault}{measured}", outcome.device.id)));
        }
        faults
    }
}

impl Bound {
    fn fault(&self, row: &KernelRow) -> Option<String> {
        let KernelRow { kernel, refused, figures, .. } = row;
        if let Some(reason) = refused {
            let known = self.refused.contains(kernel);
            return (!known).then(|| format!("{kernel} is refused: {reason}"));
        }
        let (spills, most) = (figures.spills.unwrap_or(0), self.spills.get(kernel).copied().unwrap_or(0));
        (spills > most).then(|| format!("{kernel} spills {spills} registers, and at most {most} are allowed"))
    }
}
