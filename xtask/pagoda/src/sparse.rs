//! The sparse-attention policy of an engine.

use std::sync::Arc;

use derive_setters::Setters;
use kvblock::Phase;
use models::SelectionPlace;
use sparse_select::{Policy, Registry, Spec};

use crate::error::Error;

/// A sparse-attention policy and where it runs.
#[derive(Debug, Clone, Setters)]
#[non_exhaustive]
pub struct Sparse {
    /// Policy that selects the blocks.
    #[setters(skip)]
    pub policy: Arc<dyn Policy>,
    /// The text that names the policy in reports and separates its KV from the KV of other policies.
    #[setters(skip)]
    pub spec: Spec,
    /// Place where blocks are scored: on the device, if the policy has kernels, or by its CPU code on the host.
    pub place: SelectionPlace,
    /// Report the selected blocks of every step.
    pub trace: bool,
    /// Report the share of dense attention's mass in the selected blocks; selects on the host.
    pub measure: bool,
    /// Certify in every decode step the attention mass that selections keep; otherwise, only for requests that [ask for
    /// it](crate::Request::certify).
    pub certify: bool,
}

impl Sparse {
    /// The policy that `spec` names in `registry`, scored on the device.
    ///
    /// # Errors
    /// [`Error::Spec`] if the registry has no such policy, or the policy no such key.
    pub fn new(registry: &Registry, spec: &Spec) -> Result<Self, Error> {
        Ok(Self::of(registry.build(spec)?.into(), spec.clone()))
    }

    /// A policy of no registry, scored on the device if it has kernels. Reports and KV in tiers name it `spec`.
    #[must_use]
    pub fn of(policy: Arc<dyn Policy>, spec: Spec) -> Self {
        Self { policy, spec, place: SelectionPlace::Device, trace: false, measure: false, certify: false }
    }

    /// Whether the policy selects anything at all.
    pub(crate) fn selects(&self) -> bool {
        self.policy.name() != "full"
    }

    /// Whether the policy changes the keys and values of a prompt, compared with dense attention.
    pub(crate) fn changes_prefill(&self) -> bool {
        self.selects() && self.policy.acts_on(Phase::Prefill)
    }
}
