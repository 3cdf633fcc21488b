//! Format of an indexer's vectors: kernels that write its keys to their cache, and that round its queries.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::index_logits::IndexKeys;
use attn_kernels::rows::KvWord;

use crate::ModelError;
use crate::decoder::ops::Ctx;
use crate::kernel::index_query_fp8::{self, IndexQueryFp8Buffers, IndexQueryFp8Params};
use crate::kernel::index_write::{self, IndexWriteBuffers, IndexWriteParams};
use crate::kernel::index_write_fp8::{self, IndexWriteFp8Buffers, IndexWriteFp8Params, root};

/// Kernels of one format.
#[derive(Debug)]
pub(super) enum IndexFormat {
    /// Elements are rounded at most to their storage type.
    Plain { shape: KvShape, write: Arc<Pipeline> },
    /// Vectors are rotated, then stored as codes with a scale.
    Fp8 { head_dim: u32, write: Arc<Pipeline>, query: Arc<Pipeline> },
}

impl IndexFormat {
    pub(super) fn new(gpu: &Gpu, keys: IndexKeys) -> Result<Self, ModelError> {
        Ok(match keys {
            IndexKeys::Cached(shape) => {
                Self::Plain { shape, write: gpu.pipeline(&index_write::variant(&shape))? }
            }
            IndexKeys::Fp8 { head_dim, page } => Self::Fp8 {
                head_dim,
                write: gpu.pipeline(&index_write_fp8::variant(head_dim, page))?,
                query: gpu.pipeline(&index_query_fp8::variant(head_dim))?,
            },
        })
    }

    /// Records the write of the keys `x` of `rows` rows to their slots of `keys`.
    pub(super) fn append(
        &self,
        ctx: &mut Ctx<'_>,
        rows: u32,
        x: &Buf<f32>,
        slots: &Buf<i32>,
        keys: &Buf<KvWord>,
    ) {
        match self {
            Self::Plain { shape, write } => {
                let params = IndexWriteParams { rows, row_stride: shape.head_dim, first: 0 };
                let buffers = IndexWriteBuffers { x: x.bind(), slots: slots.bind(), keys: keys.bind() };
                ctx.pass.dispatch(write, &params, buffers);
            }
            Self::Fp8 { head_dim, write, .. } => {
                let (row_stride, root) = (*head_dim, root(*head_dim));
                let params = IndexWriteFp8Params { rows, row_stride, first: 0, root };
                let buffers = IndexWriteFp8Buffers { x: x.bind(), slots: slots.bind(), keys: keys.bind() };
                ctx.pass.dispatch(write, &params, buffers);
            }
        }
    }

    /// Records the rounding of `vectors` queries and of the gates of their heads.
    pub(super) fn round_queries(&self, ctx: &mut Ctx<'_>, vectors: u32, q: &Buf<f32>, gates: &Buf<f32>) {
        if let Self::Fp8 { head_dim, query, .. } = self {
            let params = IndexQueryFp8Params { vectors, root: root(*head_dim) };
            let buffers = IndexQueryFp8Buffers { q: q.bind(), gates: gates.bind() };
            ctx.pass.dispatch(query, &params, buffers);
        }
    }
}
