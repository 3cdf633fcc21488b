//! Memory that the weights of a checkpoint take on a device.

use std::collections::{BTreeMap, BTreeSet};

use super::Checkpoint;
use crate::pack::{BLOCK, Format};
use crate::{DecoderConfig, Dtype, Role, Tensor, WeightError};

/// Weights of a checkpoint as a decoder loads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightMemory {
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Number of elements.
    pub elements: u64,
    /// Elements by type, the commonest first.
    pub types: Vec<(Dtype, u64)>,
}

impl Checkpoint {
    /// The memory that the weights take on a device, without loading them. O(tensors); formats that are repacked are repacked,
    /// one tensor at a time.
    ///
    /// # Errors
    /// [`WeightError::Missing`] for a tensor that is not there, and those of tensors that cannot be read.
    pub fn weight_memory(&self, config: &DecoderConfig) -> Result<WeightMemory, WeightError> {
        let mut memory = WeightMemory::default();
        let (mut seen, mut types) = (BTreeSet::new(), BTreeMap::<&str, (Dtype, u64)>::new());
        for role in config.tensors() {
            let Some(role) = self.holder(role) else { continue };
            let (tensor, dtype) = self.stored(role)?;
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

    /// The role under which the tensor of a role is stored: itself, or that of a tensor which several share. `None` for tables.
    fn holder(&self, role: Role) -> Option<Role> {
        let weights = self.weights();
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

    /// A tensor as it is stored, and the type that it is loaded as.
    fn stored(&self, role: Role) -> Result<(Tensor<'_>, Dtype), WeightError> {
        match self {
            Self::Quantized(quantized) => {
                let (tensor, dtype) = quantized.checkpoint.stored(role)?;
                let target = quantized.target(role, &tensor);
                Ok((tensor, target.unwrap_or(dtype)))
            }
            _ => {
                let tensor = self.weights().tensor(role)?;
                let dtype = tensor.dtype.loads_as();
                Ok((tensor, dtype))
            }
        }
    }
}

/// Device bytes of a tensor: matrices in blocks, everything else in f32.
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
