//! The measured sizes at which an adapter's products change kernels, in the form that is saved.

use std::fmt;

use models::tuning::{Crossings, kernels_digest};
use serde::{Deserialize, Serialize};

/// Sizes at which matrix products switch to another kernel on an adapter, or the reason why they were not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptTuning {
    /// Digest of the kernels that were timed.
    pub(crate) kernels: String,
    pub(crate) crossings: Crossings,
    /// Reason why nothing was measured. It is kept too, so that a failing adapter is measured only once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<String>,
}

impl KeptTuning {
    pub(crate) fn of(measured: Result<Crossings, String>) -> Self {
        let (crossings, fault) = match measured {
            Ok(crossings) => (crossings, None),
            Err(fault) => (Crossings::default(), Some(fault)),
        };
        Self { kernels: format!("{:016x}", kernels_digest()), crossings, fault }
    }

    /// Whether the sizes were measured with the kernels of this program.
    pub(crate) fn is_current(&self) -> bool {
        self.kernels == format!("{:016x}", kernels_digest())
    }
}

impl fmt::Display for KeptTuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            None => self.crossings.fmt(f),
            Some(fault) => write!(f, "of an H200, not measured: {fault}"),
        }
    }
}
