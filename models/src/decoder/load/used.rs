//! Tensors of a checkpoint that a decoder has read, and those that are left over.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashSet;

use crate::{
    DecoderConfig, IntegerTensor, LoadProgress, ModelError, Naming, Role, Size, Tensor, WeightError,
    WeightSizes, WeightSource,
};

/// A checkpoint that remembers which tensors were requested.
pub(super) struct Used<'a> {
    weights: &'a dyn WeightSource,
    /// Role and size of each requested tensor, by name.
    names: Mutex<BTreeMap<String, (Role, Size)>>,
    /// Roles whose tensors were requested.
    roles: Mutex<FxHashSet<Role>>,
    /// Whether tensors have zeros instead of their contents.
    outlines: bool,
    /// Progress that counts the tensors; `None` if they are only measured.
    progress: Option<&'a LoadProgress>,
}

impl<'a> Used<'a> {
    pub(super) fn new(weights: &'a dyn WeightSource, progress: &'a LoadProgress) -> Self {
        Self { outlines: false, progress: Some(progress), ..Self::outlines(weights) }
    }

    /// Creates a record that reads only types and shapes of tensors.
    pub(super) fn outlines(weights: &'a dyn WeightSource) -> Self {
        Self { weights, names: Mutex::default(), roles: Mutex::default(), outlines: true, progress: None }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<String, (Role, Size)>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the tensors that `other` remembers.
    pub(super) fn extend(&mut self, other: Self) {
        self.names().extend(other.names.into_inner().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the tensor of a role.
    pub(super) fn tensor(&self, role: Role) -> Result<Tensor<'a>, WeightError> {
        if self.outlines {
            return Ok(self.remember(role, self.weights.outline(role)?.loads_as_zeros()).0);
        }
        // A fused tensor is requested once for each of its parts.
        let progress = self.progress.filter(|_| self.is_new(role));
        let ahead = Mutex::new(Size::default());
        let quantised = |part: Size| {
            if let Some(progress) = progress {
                progress.add_ahead(part);
                let mut ahead = ahead.lock().unwrap_or_else(PoisonError::into_inner);
                (ahead.bytes, ahead.elements) = (ahead.bytes + part.bytes, ahead.elements + part.elements);
            }
        };
        let tensor = self.weights.tensor_by_parts(role, &quantised)?.loaded();
        let (tensor, size) = self.remember(role, tensor);
        if let (Some(progress), Some(size)) = (progress, size) {
            progress.begin_tensor(size, ahead.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(tensor)
    }

    /// Notes a tensor, and returns its size if it is requested for the first time.
    fn remember<'t>(&self, role: Role, tensor: Tensor<'t>) -> (Tensor<'t>, Option<Size>) {
        let size = Size { bytes: tensor.data.len() as u64, elements: tensor.elems() as u64 };
        let is_new = self.names().insert(tensor.name.to_string(), (role, size)).is_none();
        (tensor, is_new.then_some(size))
    }

    /// Whether the tensor of a role is requested for the first time.
    fn is_new(&self, role: Role) -> bool {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner).insert(role)
    }

    /// Returns the table of a role.
    pub(super) fn integers(&self, role: Role) -> Result<IntegerTensor, WeightError> {
        let table = self.weights.integers(role)?;
        self.names().insert(table.name.clone(), (role, Size::default()));
        Ok(table)
    }

    /// Returns the naming convention of the tensors.
    pub(super) fn naming(&self) -> Naming {
        self.weights.naming()
    }

    /// Returns the sizes of the tensors that were requested so far.
    pub(super) fn sizes(&self) -> WeightSizes {
        let mut sizes = WeightSizes::default();
        self.names().values().for_each(|(role, size)| sizes.add(*role, *size));
        sizes
    }

    /// Whether there is a tensor of this role.
    pub(super) fn has(&self, role: Role) -> bool {
        self.weights.has(role)
    }

    /// Rejects tensors that were not requested: a decoder that knew them would compute something else.
    ///
    /// # Errors
    /// [`WeightError::Extra`]; [`ModelError::Untied`] for an output head that is stored next to a tied embedding and
    /// differs from it.
    pub(super) fn check_rest(&self, config: &DecoderConfig) -> Result<(), ModelError> {
        let used = self.names();
        // Several tensors may be read as one.
        let part = |name: &str| self.weights.whole(name).is_some_and(|whole| used.contains_key(&whole));
        let head = self.weights.naming().name(Role::LmHead);
        let mut rest = Vec::new();
        for name in self.weights.names() {
            if used.contains_key(name) || part(name) || self.is_known(config, name) {
                continue;
            }
            if config.tie_embeddings && head.as_deref() == Some(name) {
                self.check_tied(name)?;
            } else {
                rest.push(name);
            }
        }
        match rest.first() {
            Some(name) => {
                let (name, path) = ((*name).to_owned(), self.weights.path().into());
                Err(WeightError::Extra { name, count: rest.len(), path }.into())
            }
            None => Ok(()),
        }
    }

    /// Whether a tensor repeats the configuration, or belongs to layers that draft tokens, which are not run here.
    fn is_known(&self, config: &DecoderConfig, name: &str) -> bool {
        match self.weights.naming() {
            Naming::Gguf => name.starts_with("rope_f"),
            Naming::Hf => {
                // Scales of a cache of codes, which has its own here.
                let of_cache = name.ends_with(".k_scale") || name.ends_with(".v_scale");
                of_cache || name.ends_with("rotary_emb.inv_freq") || config.leaves_out(name)
            }
        }
    }

    fn check_tied(&self, name: &str) -> Result<(), ModelError> {
        // By name, as it is stored: by its role it may come in another type.
        let mut names = self.weights.naming().names(Role::Embed);
        let embedding = names.find_map(|name| self.weights.get(&name).transpose()).transpose()?;
        match (self.weights.get(name)?, embedding) {
            (Some(head), Some(embedding))
                if (head.dtype, &head.data) != (embedding.dtype, &embedding.data) =>
            {
                Err(ModelError::Untied { name: name.to_owned() })
            }
            _ => Ok(()),
        }
    }
}
