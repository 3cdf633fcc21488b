//! Memory that the weights of a checkpoint use on a device.

use std::collections::{BTreeMap, BTreeSet};

use crate::pack::{BLOCK, Format};
use crate::{Checkpoint, DecoderConfig, Dtype, Role, Tensor, WeightError};

/// Weights of a checkpoint in the form that a decoder loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightMemory {
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Number of elements.
    pub elements: u64,
    /// Elements by type, the most frequent first.
    pub types: Vec<(Dtype, u64)>,
}

impl WeightMemory {
    /// Computes the memory that the weights use on a device, without loading them. O(tensors); formats that are repacked are
    /// repacked one tensor at a time.
    ///
    /// # Errors
    /// [`WeightError::Missing`] for a tensor that is not there, and those of tensors that cannot be read.
    pub fn of(checkpoint: &Checkpoint, config: &DecoderConfig) -> Result<Self, WeightError> {
        let mut memory = Self::default();
        let (mut seen, mut types) = (BTreeSet::new(), BTreeMap::<&str, (Dtype, u64)>::new());
        for role in config.tensors() {
            let Some(role) = holder(checkpoint, role) else { continue };
            let (tensor, dtype) = checkpoint.stored(role)?;
            if !seen.insert(tensor.name.to_string()) {
                continue;
            }
            let elements = tensor.elems() as u64;
            memory.elements += elements;
            memory.device_bytes += device_bytes(role, &tensor, dtype);
            types.entry(dtype.name()).or_insert((dtype, 0)).1 += elements;
        }
        memory.types = types.into_values().collect();
        memory.types.sort_by_key(|(dtype, elements)| (u64::MAX - elements, dtype.name()));
        Ok(memory)
    }
}

/// Returns the role under which the tensor of a role is stored: its own, or that of a fused tensor. `None` for tables.
fn holder(checkpoint: &Checkpoint, role: Role) -> Option<Role> {
    let weights = checkpoint.weights();
    let shared = match role {
        Role::RouterTable(_) => return None,
        Role::Q(l) | Role::K(l) | Role::V(l) => vec![Role::Qkv(l)],
        Role::Gate(l) => vec![Role::GateUp(l), Role::Up(l)],
        Role::Up(l) => vec![Role::GateUp(l)],
        Role::ExpertGate(l, _) => vec![Role::ExpertsGate(l), Role::ExpertsGateUp(l)],
        Role::ExpertUp(l, _) => vec![Role::ExpertsUp(l), Role::ExpertsGateUp(l)],
        Role::ExpertDown(l, _) => vec![Role::ExpertsDown(l)],
        Role::ExpertsGateBias(l) | Role::ExpertsUpBias(l) => vec![Role::ExpertsGateUpBias(l)],
        Role::KvB(l) => vec![Role::KB(l), Role::VB(l)],
        _ => Vec::new(),
    };
    let known = |role: &Role| weights.has(*role);
    // What nobody stores is asked for by its own name, for the error.
    Some(Some(role).into_iter().chain(shared).find(known).unwrap_or(role))
}

/// Returns the device bytes of a tensor: matrices in blocks, everything else in f32.
fn device_bytes(role: Role, tensor: &Tensor<'_>, dtype: Dtype) -> u64 {
    let elements = tensor.elems();
    let bytes = match (role, &tensor.shape[..]) {
        // Taken apart by head, into f16 where they are quantised.
        (Role::KvB(_) | Role::KB(_) | Role::VB(_), _) => elements * if dtype == Dtype::F32 { 4 } else { 2 },
        (_, [.., _, width]) if width.is_multiple_of(BLOCK) => {
            elements / width * Format::from(dtype).column_bytes(width / BLOCK)
        }
        (_, [_, ..]) if tensor.shape.len() > 1 => elements * dtype.block_bytes() / dtype.block_elems(),
        _ => elements * 4,
    };
    bytes as u64
}
