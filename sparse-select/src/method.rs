//! A policy as an engine drives it: the scheduler's part knows positions and history, the worker's part has tensors.

use std::collections::{BTreeMap, HashMap};

use crate::{Input, Policy, Registry, SelectError, Selection, Spec, SpecError};

/// Which half of the engine an object serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Decides per request and step, without tensors.
    Scheduler,
    /// Runs beside the model, layer by layer.
    Worker,
}

/// How a wait for prefetched blocks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchOutcome {
    /// The blocks are resident.
    Ready,
    /// They could not be loaded.
    Failed,
    /// They did not arrive in time.
    TimedOut,
}

/// The prefetch engine as a worker sees it.
pub trait PrefetchWait {
    /// Blocks until the request's prefetch has ended.
    fn wait(&mut self, request: u64) -> PrefetchOutcome;
}

/// A request of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRequest {
    /// Request id.
    pub request: u64,
    /// Tokens computed before the step.
    pub num_computed_tokens: usize,
    /// Tokens computed in the step.
    pub num_scheduled_tokens: usize,
}

/// A request of a batch in one layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerRequest<'a> {
    /// Request id.
    pub request: u64,
    /// Its queries and keys; the layer is filled in.
    pub input: Input<'a>,
    /// Whether a prefetch was submitted for it.
    pub prefetching: bool,
}

/// Builds the policy of a spec for a role.
///
/// # Errors
/// As [`Registry::build`].
pub fn create_sparse_method(registry: &Registry, spec: &Spec, role: Role) -> Result<SparseMethod, SpecError> {
    Ok(SparseMethod {
        policy: registry.build(spec)?,
        role,
        prefetch: None,
        layers: BTreeMap::new(),
        history: HashMap::new(),
        current: Vec::new(),
    })
}

/// A policy with the state that one role keeps.
pub struct SparseMethod {
    policy: Box<dyn Policy>,
    role: Role,
    prefetch: Option<Box<dyn PrefetchWait>>,
    /// Layer index by name.
    layers: BTreeMap<String, u32>,
    /// Accesses of each block by each request.
    history: HashMap<u64, Vec<u32>>,
    current: Vec<Selection>,
}

impl SparseMethod {
    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Scheduler: selects for every request of a step by its length and its earlier accesses, in order.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`], or what the policy needs and a scheduler does not have: a query.
    pub fn build_sparse_meta(&self, requests: &[StepRequest]) -> Result<Vec<(u64, Selection)>, SelectError> {
        self.expect(Role::Scheduler, "build_sparse_meta")?;
        let select = |r: &StepRequest| {
            let access = self.history.get(&r.request).map_or(&[][..], Vec::as_slice);
            let kv_len = r.num_computed_tokens + r.num_scheduled_tokens;
            let mut selection = Selection::new();
            self.policy.select_into(&Input { access, ..Input::positions(kv_len) }, &mut selection)?;
            Ok((r.request, selection))
        };
        requests.iter().map(select).collect()
    }

    /// Scheduler: counts an access of every block that a completed step selected.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`].
    pub fn step_completed(&mut self, request: u64, selection: &Selection) -> Result<(), SelectError> {
        self.expect(Role::Scheduler, "step_completed")?;
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
        self.expect(Role::Scheduler, "request_finished")?;
        self.history.remove(&request);
        Ok(())
    }

    /// Worker: takes the prefetch engine whose blocks attention waits for.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`].
    pub fn set_prefetch(&mut self, prefetch: Box<dyn PrefetchWait>) -> Result<(), SelectError> {
        self.expect(Role::Worker, "set_prefetch")?;
        self.prefetch = Some(prefetch);
        Ok(())
    }

    /// Worker: names the layers that have a KV cache, in the order of the model. Replaces earlier names.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`].
    pub fn register_kv_caches(&mut self, layers: &[&str]) -> Result<(), SelectError> {
        self.expect(Role::Worker, "register_kv_caches")?;
        self.layers = layers.iter().map(|&name| name.to_owned()).zip(0..).collect();
        Ok(())
    }

    /// Worker: waits for the prefetches of the batch, then selects for each request; the kernel reads
    /// [`selections`](Self::selections). Queries, keys and values are borrowed and stay as they are.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`], an unregistered layer, a prefetch that did not arrive, or an error of the policy.
    /// No selection is kept then.
    pub fn attention_begin(&mut self, layer: &str, batch: &[LayerRequest<'_>]) -> Result<(), SelectError> {
        self.expect(Role::Worker, "attention_begin")?;
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

    /// The selections of the current layer in the order of its batch; none outside attention.
    #[must_use]
    pub fn selections(&self) -> &[Selection] {
        &self.current
    }

    /// Worker: drops the selections of the layer.
    ///
    /// # Errors
    /// [`SelectError::WrongRole`] or an unregistered layer.
    pub fn attention_finished(&mut self, layer: &str) -> Result<(), SelectError> {
        self.expect(Role::Worker, "attention_finished")?;
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

    fn expect(&self, role: Role, call: &'static str) -> Result<(), SelectError> {
        let expected = match role {
            Role::Scheduler => "scheduler",
            Role::Worker => "worker",
        };
        if self.role == role { Ok(()) } else { Err(SelectError::WrongRole { call, expected }) }
    }
}
