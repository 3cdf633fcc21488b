//! Reference of `expert_gate_up`, on the tensors of a checkpoint as they are stored.

use super::glu::glu;
use super::matmul_int8::{Codes, matmul_int8};
use super::quantize_rows::quantize_rows;
use crate::kernel::expert_gate_up::ExpertGateUpParams;
use crate::kernel::glu::GluParams;
use crate::kernel::matmul::{Epilogue, MatmulParams};
use crate::kernel::quantize_rows::QuantizeRowsParams;
use crate::{Activation, Tensor};

/// Computes `activation(gate) * up` of each pair of a row and an expert, quantised to int8 codes `[pairs, inner]` and
/// scales. `experts[pair]` is the pair's expert; all rows have equally many experts. `tensors[i]` are the gates and ups
/// of expert `i`, `[2 * inner, 32 * blocks]`, and `biases` are those of all experts.
pub fn expert_gate_up(
    params: &ExpertGateUpParams,
    activation: Activation,
    rows: Codes<'_>,
    experts: &[u32],
    tensors: &[Tensor<'_>],
    biases: Option<&[f32]>,
) -> (Vec<i8>, Vec<[f32; 2]>) {
    let ExpertGateUpParams { inner, blocks, alpha, limit, .. } = *params;
    let top = experts.len() / (rows.scales.len() / blocks as usize);
    let one = MatmulParams::new([1, 2 * inner, blocks]);
    let mut products = vec![0.0; experts.len() * 2 * inner as usize];
    for ((pair, expert), y) in (0..).zip(experts).zip(products.chunks_exact_mut(2 * inner as usize)) {
        let first = pair / top * blocks as usize;
        let row = Codes {
            codes: &rows.codes[first * 32..][..blocks as usize * 32],
            scales: &rows.scales[first..][..blocks as usize],
        };
        matmul_int8(&one, Epilogue::Store, row, &tensors[*expert as usize..=*expert as usize], y);
    }
    let unit = GluParams { rows: params.pairs, inner, out_stride: inner, alpha, limit };
    let mut made = vec![0.0; experts.len() * inner as usize];
    glu(&unit, activation, &products, None, biases.map(|biases| (experts, biases)), &mut made);
    let quantize =
        QuantizeRowsParams { rows: params.pairs, blocks: inner / 32, x_stride: inner / 4, eps: 0.0 };
    quantize_rows(&quantize, &made)
}
