//! Projections that some checkpoints keep in one tensor: queries, keys and values, or gates and ups.

use std::borrow::Cow;

use super::WeightLoader;
use crate::{ModelError, Naming, Role, Tensor};

impl WeightLoader<'_> {
    /// Returns the tensor of a role, stored by itself or as part of a fused tensor, in the shape that the configuration gives.
    pub(super) fn part(&self, role: Role) -> Result<Tensor<'_>, ModelError> {
        let rows = self.config.shape(role)[0];
        let Some(Fused { name, whole, first }) = self.fused(role) else {
            let tensor = self.checked(self.weights.tensor(role)?, &self.config.shape(role))?;
            return finite(role, tensor);
        };
        let tensor = self.checked(self.weights.tensor(name)?, &self.config.shape(whole))?;
        let row_bytes = tensor.data.len() / tensor.shape[0];
        let bytes = first * row_bytes..(first + rows) * row_bytes;
        let data = match tensor.data {
            Cow::Borrowed(data) => Cow::Borrowed(&data[bytes]),
            Cow::Owned(data) => Cow::Owned(data[bytes].to_vec()),
        };
        Ok(Tensor { shape: vec![rows, tensor.shape[1]], data, ..tensor })
    }

    /// Returns the fused tensor that contains the tensor of a role, if there is one.
    fn fused(&self, role: Role) -> Option<Fused> {
        let rows = |role| self.config.shape(role)[0];
        let (whole, first, apart) = match role {
            Role::Q(l) => (Role::Qkv(l), 0, Role::Q(l)),
            Role::K(l) => (Role::Qkv(l), rows(Role::Q(l)), Role::Q(l)),
            Role::V(l) => (Role::Qkv(l), rows(Role::Q(l)) + rows(Role::K(l)), Role::Q(l)),
            Role::Gate(l) => (Role::GateUp(l), 0, Role::Gate(l)),
            Role::Up(l) => (Role::GateUp(l), rows(Role::Gate(l)), Role::Gate(l)),
            _ => return None,
        };
        let name = match (self.weights.naming(), whole) {
            (Naming::Gguf, Role::GateUp(l)) => Role::Up(l),
            _ => whole,
        };
        let is = !self.weights.has(apart) && self.weights.has(name);
        is.then_some(Fused { name, whole, first })
    }
}

/// Rejects infinities and NaN in weights that only select and in vectors, where logits might not reveal them: some
/// vectors are clamped, or lost among larger values. In other matrices, they reach the logits of every token that
/// uses the matrix.
fn finite(role: Role, tensor: Tensor<'_>) -> Result<Tensor<'_>, ModelError> {
    let chooses =
        matches!(role, Role::IndexQ(_) | Role::IndexK(_) | Role::IndexGates(_) | Role::IndexCompressor(..));
    let is_bias = matches!(
        role,
        Role::ExpertsGateUpBias(_)
            | Role::ExpertsGateBias(_)
            | Role::ExpertsUpBias(_)
            | Role::ExpertsDownBias(_)
    );
    if tensor.shape.len() > 1 && !chooses && !is_bias {
        return Ok(tensor);
    }
    let values = tensor.to_f32();
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(tensor),
        Some(element) => {
            Err(ModelError::NotFinite { name: tensor.name.into(), element, value: values[element] })
        }
    }
}

/// A tensor that holds the tensors of several roles.
struct Fused {
    /// Role whose name the fused tensor has.
    name: Role,
    /// Role whose configured shape the fused tensor has.
    whole: Role,
    /// First row of the part in the fused tensor.
    first: usize,
}
