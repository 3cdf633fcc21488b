//! A policy as an engine drives it: on the scheduler, which knows positions and history, or on a worker,
//! which has tensors.
//!
//! Library only: the engine asks policies for their ranking and runs it in kernels. This is the interface of GSA and UCM, for
//! engines that call a policy step by step.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::{Input, Policy, Registry, SelectError, Selection, Spec, SpecError};

/// Half of the engine that a method serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodRole {
    /// Selects per request and step, without tensors.
    Scheduler,
    /// Selects layer by layer, next to the model.
    Worker,
}

/// Result of a wait for prefetched blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchOutcome {
    /// The blocks are resident.
    Ready,
    /// The selected blocks could not be loaded.
    Failed,
    /// The selected blocks did not arrive in time.
    TimedOut,
}

/// Prefetch engine as a worker sees it.
pub trait PrefetchWait {
    /// Waits until the prefetch of `request` has ended.
    fn wait(&mut self, request: u64) -> PrefetchOutcome;
}

/// A request of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRequest {
    /// Request id.
    pub request: u64,
    /// Number of tokens computed before the step.
    pub num_computed_tokens: usize,
    /// Number of tokens computed in the step.
    pub num_scheduled_tokens: usize,
}

/// A request of a batch, in one layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerRequest<'a> {
    /// Request id.
    pub request: u64,
    /// Queries and keys of the layer; the layer index is filled in.
    pub input: Input<'a>,
    /// Whether a prefetch was submitted for the request.
    pub prefetching: bool,
}

/// Builds the policy of a spec for a role.
///
/// # Errors
/// As [`Registry::build`].
pub fn create_sparse_method(
    registry: &Registry,
    spec: &Spec,
    role: MethodRole,
) -> Result<SparseMethod, SpecError> {
    Ok(SparseMethod {
        policy: registry.build(spec)?,
        role,
        prefetch: None,
        layers: BTreeMap::new(),
        history: HashMap::new(),
        current: Vec::new(),
    })
}

/// A policy together with the state of one role.
pub struct SparseMethod {
    policy: Box<dyn Policy>,
    role: MethodRole,
    prefetch: Option<Box<dyn PrefetchWait>>,
    /// Layer index by name.
    layers: BTreeMap<String, u32>,
    /// Accesses of each block by each request.
    history: HashMap<u64, Vec<u32>>,
    current: Vec<Selection>,
}

impl fmt::Debug for SparseMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseMethod")
            .field("policy", &self.policy.name())
            .field("role", &self.role)
            .field("layers", &self.layers)
            .finish_non_exhaustive()
    }
}

impl SparseMethod {
    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Scheduler: selects blocks for every request of a step, in order, from its length and its earlier
    /// accesses.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`], or [`SelectError::MissingQuery`] for policies that need a query.
    pub fn build_sparse_meta(&self, requests: &[StepRequest]) -> Result<Vec<(u64, Selection)>, SelectError> {
        self.expect(MethodRole::Scheduler, "build_sparse_meta")?;
        let select = |r: &StepRequest| {
            let access = self.history.get(&r.request).map_or(&[][..], Vec::as_slice);
            let kv_len = r.num_computed_tokens + r.num_scheduled_tokens;
            let mut selection = Selection::new();
            self.policy.select_into(&Input { access, ..Input::positions(kv_len) }, &mut selection)?;
            Ok((r.request, selection))
        };
        requests.iter().map(select).collect()
    }

    /// Scheduler: counts one access to every block that a completed step selected.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`].
    pub fn step_completed(&mut self, request: u64, selection: &Selection) -> Result<(), SelectError> {
        self.expect(MethodRole::Scheduler, "step_completed")?;
        let counts = self.history.entry(request).or_default();
        counts.resize(counts.len().max(selection.num_blocks() as usize), 0);
        let mut blocks: Vec<u32> = selection.indices().iter().map(|b| b.get()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.into_iter().for_each(|b| counts[b as usize] += 1);
        Ok(())
    }

    /// Scheduler: forgets a request that ended.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`].
    pub fn request_finished(&mut self, request: u64) -> Result<(), SelectError> {
        self.expect(MethodRole::Scheduler, "request_finished")?;
        self.history.remove(&request);
        Ok(())
    }

    /// Worker: sets the prefetch engine that attention waits for.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`].
    pub fn set_prefetch(&mut self, prefetch: Box<dyn PrefetchWait>) -> Result<(), SelectError> {
        self.expect(MethodRole::Worker, "set_prefetch")?;
        self.prefetch = Some(prefetch);
        Ok(())
    }

    /// Worker: registers the names of the layers that have a KV cache, in the order of the model. Replaces
    /// earlier names.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`].
    pub fn register_kv_caches(&mut self, layers: &[&str]) -> Result<(), SelectError> {
        self.expect(MethodRole::Worker, "register_kv_caches")?;
        self.layers = layers.iter().map(|&name| name.to_owned()).zip(0..).collect();
        Ok(())
    }

    /// Worker: waits for the prefetches of the batch, then selects blocks for each request; the kernel reads
    /// [`selections`](Self::selections). The tensors are only borrowed.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`], [`SelectError::UnknownLayer`], [`SelectError::Prefetch`], or an error of
    /// the policy. There are no selections then.
    pub fn attention_begin(&mut self, layer: &str, batch: &[LayerRequest<'_>]) -> Result<(), SelectError> {
        self.expect(MethodRole::Worker, "attention_begin")?;
        self.current.clear();
        let index = self.layer(layer)?;
        if let Some(prefetch) = &mut self.prefetch {
            for r in batch.iter().filter(|r| r.prefetching) {
                let outcome = match prefetch.wait(r.request) {
                    PrefetchOutcome::Ready => continue,
                    PrefetchOutcome::Failed => "failed",
                    PrefetchOutcome::TimedOut => "timed out",
                };
                return Err(SelectError::Prefetch { request: r.request, outcome });
            }
        }
        let select = |r: &LayerRequest<'_>| {
            let mut selection = Selection::new();
            self.policy.select_into(&Input { layer: Some(index), ..r.input }, &mut selection)?;
            Ok(selection)
        };
        self.current = batch.iter().map(select).collect::<Result<_, SelectError>>()?;
        Ok(())
    }

    /// The selections of the current layer, in the order of the batch; empty outside of attention.
    #[must_use]
    pub fn selections(&self) -> &[Selection] {
        &self.current
    }

    /// Worker: ends the attention of the layer and drops its selections.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`] or [`SelectError::UnknownLayer`].
    pub fn attention_finished(&mut self, layer: &str) -> Result<(), SelectError> {
        self.expect(MethodRole::Worker, "attention_finished")?;
        self.layer(layer)?;
        self.current.clear();
        Ok(())
    }

    fn layer(&self, layer: &str) -> Result<u32, SelectError> {
        self.layers.get(layer).copied().ok_or_else(|| SelectError::UnknownLayer {
            layer: layer.to_owned(),
            registered: self.layers.len(),
        })
    }

    fn expect(&self, role: MethodRole, call: &'static str) -> Result<(), SelectError> {
        let expected = match role {
            MethodRole::Scheduler => "scheduler",
            MethodRole::Worker => "worker",
        };
        if self.role == role { Ok(()) } else { Err(SelectError::WrongRole { call, expected }) }
    }
}
