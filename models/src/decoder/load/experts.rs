//! Loads the experts of a layer from the layouts that checkpoints use.

use std::borrow::Cow;

use attn_kernels::gpu::Buf;

use super::WeightLoader;
use crate::decoder::moe::{Experts, Moe, SharedExpert};
use crate::matrix::Matrix;
use crate::{ExpertPacking, IntegerTensor, ModelError, MoeConfig, Role, Tensor};

impl WeightLoader<'_> {
    /// Loads the router and the experts of a layer.
    pub(super) fn moe(&self, l: u32) -> Result<Moe, ModelError> {
        let moe = self.config.moe.as_ref().expect("a layer of experts has a configuration of them");
        let hashed = self.config.layers[l as usize].mlp == crate::Mlp::HashedExperts;
        let correction = match moe.router.correction && !hashed {
            true => self.tensor(Role::RouterCorrection(l))?.to_f32(),
            false => vec![0.0; moe.num_experts as usize],
        };
        Ok(Moe {
            router: self.matrix(Role::Router(l))?,
            router_bias: match moe.biases {
                true => Some(self.vector(Role::RouterBias(l))?),
                false => None,
            },
            correction: self.allocator.vector("correction", &correction)?,
            table: match hashed {
                true => Some(self.expert_table(l, moe)?),
                false => None,
            },
            experts: self.experts(l, moe)?,
            shared: match moe.shared_size {
                Some(width) => Some(SharedExpert {
                    width,
                    gate_up: Matrix::stacked(
                        &self.allocator,
                        &Tensor::alike([self.tensor(Role::SharedGate(l))?, self.tensor(Role::SharedUp(l))?]),
                    )?,
                    down: self.matrix(Role::SharedDown(l))?,
                }),
                None => None,
            },
        })
    }

    /// Loads the experts of each token id, `[vocab, top_k]`.
    fn expert_table(&self, l: u32, moe: &MoeConfig) -> Result<Buf<u32>, ModelError> {
        let table = self.weights.integers(Role::RouterTable(l))?;
        let expected = [self.config.vocab_size as usize, moe.top_k as usize];
        if table.shape != expected {
            let IntegerTensor { name, shape, .. } = table;
            return Err(ModelError::Shape { name, shape, expected: expected.to_vec() });
        }
        let expert = |(i, expert): (usize, &i64)| {
            let known = u32::try_from(*expert).ok().filter(|expert| *expert < moe.num_experts);
            known.ok_or_else(|| ModelError::Expert {
                name: table.name.clone(),
                token: i / expected[1],
                expert: *expert,
                num_experts: moe.num_experts,
            })
        };
        let experts = table.values.iter().enumerate().map(expert).collect::<Result<Vec<u32>, _>>()?;
        self.allocator.vector(&table.name, &experts)
    }

    fn experts(&self, l: u32, moe: &MoeConfig) -> Result<Experts, ModelError> {
        let count = moe.num_experts;
        let (gate_up, down) = if self.weights.has(Role::ExpertGate(l, 0)) {
            let gate_up =
                |e| joined(self.tensor(Role::ExpertGate(l, e))?, self.tensor(Role::ExpertUp(l, e))?);
            let down = |e| self.tensor(Role::ExpertDown(l, e));
            (
                Matrix::several(&self.allocator, count, gate_up)?,
                Matrix::several(&self.allocator, count, down)?,
            )
        } else {
            let gate_up = self.gate_up(l, moe)?;
            let down = self.packed(Role::ExpertsDown(l), moe)?;
            (gate_up, Matrix::several(&self.allocator, count, |e| Ok(down.expert(e)))?)
        };
        let biases = match moe.biases {
            true => Some(self.expert_biases(l, moe)?),
            false => None,
        };
        Ok(Experts { gate_up, down, biases })
    }

    /// Loads gates and ups from tensors that hold all experts: one tensor for each, or one for both.
    fn gate_up(&self, l: u32, moe: &MoeConfig) -> Result<Matrix, ModelError> {
        if !self.weights.has(Role::ExpertsGate(l)) {
            let gate_up = self.packed(Role::ExpertsGateUp(l), moe)?;
            return Matrix::several(&self.allocator, moe.num_experts, |e| Ok(gate_up.expert(e)));
        }
        let [gate, up] = [Role::ExpertsGate(l), Role::ExpertsUp(l)].map(|role| self.packed(role, moe));
        let (gate, up) = (gate?, up?);
        Matrix::several(&self.allocator, moe.num_experts, |e| joined(gate.expert(e), up.expert(e)))
    }

    /// Returns a tensor of all experts, and how to extract one.
    fn packed(&self, role: Role, moe: &MoeConfig) -> Result<PackedExperts<'_>, ModelError> {
        let tensor = self.weights.tensor(role)?;
        let (hidden, inner) = (self.config.hidden_size as usize, moe.inner_size as usize);
        let gate_up = matches!(role, Role::ExpertsGateUp(_));
        let [rows, width] = match role {
            Role::ExpertsGateUp(_) => [2 * inner, hidden],
            Role::ExpertsDown(_) => [hidden, inner],
            _ => [inner, hidden],
        };
        // Blocks of quantised types run along rows, whatever the plain layout is.
        let transposed = moe.packing != ExpertPacking::Rows && tensor.dtype.block_elems() == 1;
        let alternate = gate_up && moe.packing == ExpertPacking::AlternateColumns;
        let [outer, last] = if transposed { [width, rows] } else { [rows, width] };
        let tensor = self.checked(tensor, &[moe.num_experts as usize, outer, last])?;
        Ok(PackedExperts { tensor, rows, width, transposed, alternate })
    }

    /// Loads the biases of gate and up `[experts, 2, inner]`, and of down `[experts, hidden]`.
    fn expert_biases(&self, l: u32, moe: &MoeConfig) -> Result<[Buf<f32>; 2], ModelError> {
        let inner = moe.inner_size as usize;
        let values = |role| Ok::<_, ModelError>(self.tensor(role)?.to_f32());
        let gate_up = if self.weights.has(Role::ExpertsGateBias(l)) {
            let [gate, up] = [Role::ExpertsGateBias(l), Role::ExpertsUpBias(l)].map(values);
            let (gate, up) = (gate?, up?);
            gate.chunks_exact(inner)
                .zip(up.chunks_exact(inner))
                .flat_map(|(gate, up)| [gate, up].concat())
                .collect()
        } else {
            let gate_up = values(Role::ExpertsGateUpBias(l))?;
            let apart = |pairs: &[f32]| -> Vec<f32> {
                let part = |part| pairs.iter().copied().skip(part).step_by(2);
                part(0).chain(part(1)).collect()
            };
            match moe.packing {
                ExpertPacking::AlternateColumns => gate_up.chunks_exact(2 * inner).flat_map(apart).collect(),
                ExpertPacking::Rows | ExpertPacking::Columns => gate_up,
            }
        };
        let down = values(Role::ExpertsDownBias(l))?;
        Ok([self.allocator.vector("gate_up_bias", &gate_up)?, self.allocator.vector("down_bias", &down)?])
    }
}

/// Joins gate and up of one expert.
fn joined<'t>(gate: Tensor<'t>, up: Tensor<'t>) -> Result<Tensor<'t>, ModelError> {
    let [gate, up] = Tensor::alike([gate, up]);
    crate::matrix::check(&up, &gate)?;
    let data = [&gate.data[..], &up.data].concat();
    Ok(Tensor { shape: vec![2 * gate.shape[0], gate.shape[1]], data: data.into(), ..gate })
}

/// A tensor that holds all experts.
struct PackedExperts<'a> {
    tensor: Tensor<'a>,
    /// Number of output features of an expert.
    rows: usize,
    /// Number of input features of the experts.
    width: usize,
    /// Whether the input features are the first dimension of an expert's matrix.
    transposed: bool,
    /// Whether gates and ups alternate.
    alternate: bool,
}

impl PackedExperts<'_> {
    /// Returns the matrix of expert `e`, `[rows, width]`, gates before ups.
    fn expert(&self, e: u32) -> Tensor<'_> {
        let bytes = self.tensor.data.len() / self.tensor.shape[0];
        let data = &self.tensor.data[e as usize * bytes..][..bytes];
        let data = match (self.transposed, self.alternate) {
            (false, false) => Cow::Borrowed(data),
            _ => Cow::Owned(self.reordered(data)),
        };
        let (name, shape) = (self.tensor.name.clone(), vec![self.rows, self.width]);
        Tensor { name, dtype: self.tensor.dtype, shape, data }
    }

    fn reordered(&self, data: &[u8]) -> Vec<u8> {
        let from = |row: usize| match self.alternate {
            true => row % (self.rows / 2) * 2 + row / (self.rows / 2),
            false => row,
        };
        let mut out = Vec::with_capacity(data.len());
        for row in (0..self.rows).map(from) {
            if self.transposed {
                let bytes = self.tensor.dtype.block_bytes();
                for i in 0..self.width {
                    out.extend_from_slice(&data[(i * self.rows + row) * bytes..][..bytes]);
                }
            } else {
                let bytes = data.len() / self.rows;
                out.extend_from_slice(&data[row * bytes..][..bytes]);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    fn packed(transposed: bool, alternate: bool, values: &[f32]) -> PackedExperts<'static> {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let shape = if transposed { vec![1, 3, 4] } else { vec![1, 4, 3] };
        let tensor = Tensor { name: "t".into(), dtype: Dtype::F32, shape, data: data.into() };
        PackedExperts { tensor, rows: 4, width: 3, transposed, alternate }
    }

    /// Element `[row][i]` is `10 * row + i`, gates are rows 0 and 1.
    #[test]
    fn every_layout_gives_gates_then_ups() {
        let want: Vec<f32> = (0..4).flat_map(|row| (0..3).map(move |i| (10 * row + i) as f32)).collect();
        let columns: Vec<f32> = (0..3).flat_map(|i| (0..4).map(move |row| (10 * row + i) as f32)).collect();
        let pairs_order = [0, 2, 1, 3];
        let alternate: Vec<f32> = (0..3).flat_map(|i| pairs_order.map(|row| (10 * row + i) as f32)).collect();
        let rows: Vec<f32> =
            pairs_order.iter().flat_map(|row| (0..3).map(move |i| (10 * row + i) as f32)).collect();
        for (transposed, alternates, values) in
            [(false, false, &want), (true, false, &columns), (true, true, &alternate), (false, true, &rows)]
        {
            let packed = packed(transposed, alternates, values);
            assert_eq!(packed.expert(0).to_f32(), want, "transposed {transposed}, alternate {alternates}");
        }
    }
}
