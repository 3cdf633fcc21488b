//! Weights of multi-head attention.

use attn_kernels::gpu::Buf;

use crate::matrix::Matrix;

/// Weights of one layer.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct HeadWeights {
    /// Queries, keys and values: one matrix, or several if their types differ, each with its first column.
    pub(in crate::decoder) qkv: Vec<(Matrix, u32)>,
    /// Bias of queries, keys and values together.
    pub(in crate::decoder) qkv_bias: Option<Buf<f32>>,
    /// Norms of query and of key heads.
    pub(in crate::decoder) qk_norm: Option<[Buf<f32>; 2]>,
    /// Sink logits, `[num_heads]`.
    pub(in crate::decoder) sinks: Option<Buf<f32>>,
    pub(in crate::decoder) o: Matrix,
    pub(in crate::decoder) o_bias: Option<Buf<f32>>,
    /// Norm of the attention's output.
    pub(in crate::decoder) post_norm: Option<Buf<f32>>,
}
