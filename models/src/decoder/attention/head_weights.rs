//! Weights of multi-head attention.

use attn_kernels::gpu::Buf;

use crate::matrix::Matrix;

/// Factors and addends of the norms of queries and keys.
#[derive(Clone, Debug)]
pub(in crate::decoder) enum QkNormWeights {
    /// Weights for every head: those of queries, then those of keys.
    Heads(Buf<f32>),
    /// Weights for all heads of a row together: those of queries, and those of keys.
    Whole([Buf<f32>; 2]),
}

/// Weights of one layer.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct HeadWeights {
    /// Queries, keys and values: one matrix, or several if their types differ, each with its first column.
    pub(in crate::decoder) qkv: Vec<(Matrix, u32)>,
    /// Bias of queries, keys and values together.
    pub(in crate::decoder) qkv_bias: Option<Buf<f32>>,
    /// Norms of queries and keys.
    pub(in crate::decoder) qk_norm: Option<QkNormWeights>,
    /// Sink logits, `[num_heads]`.
    pub(in crate::decoder) sinks: Option<Buf<f32>>,
    pub(in crate::decoder) o: Matrix,
    pub(in crate::decoder) o_bias: Option<Buf<f32>>,
    /// Norm of the attention's output.
    pub(in crate::decoder) post_norm: Option<Buf<f32>>,
}
