//! One transformer layer.

use attn_kernels::gpu::{Bind, Buf, Pass};

use super::Decoder;
use super::compressed::Compressed;
use super::hyper::Hyper;
use super::inputs::{Plan, ViewInputs};
use super::latent::Latent;
use super::mlp::Mlp;
use crate::ModelError;
use crate::kernel::matmul::Epilogue;
use crate::kernel::norm_heads::NormHeadsParams;
use crate::kernel::rope_append::{self, RopeAppendParams};
use crate::matrix::{Matrix, Product};

/// Weights of one layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    /// Index of the rows that its attention reads.
    pub(super) view: usize,
    pub(super) attn_norm: Buf<f32>,
    /// Queries, keys and values: one matrix, or several where their types differ, each with its first column.
    pub(super) qkv: Vec<(Matrix, u32)>,
    /// Of queries, keys and values together.
    pub(super) qkv_bias: Option<Buf<f32>>,
    /// Norms of query and of key heads.
    pub(super) qk_norm: Option<[Buf<f32>; 2]>,
    /// Logits `[num_heads]` without a key.
    pub(super) sinks: Option<Buf<f32>>,
    /// In place of the above, where attention goes through latents.
    pub(super) latent: Option<Box<Latent>>,
    /// In place of the above, where it goes to compressed entries.
    pub(super) compressed: Option<Box<Compressed>>,
    /// `None` where compressed attention has projections of its own.
    pub(super) o: Option<Matrix>,
    pub(super) o_bias: Option<Buf<f32>>,
    pub(super) mlp_norm: Buf<f32>,
    pub(super) mlp: Mlp,
    /// Of attention and of the MLP, where there are several residual streams.
    pub(super) hyper: [Option<Hyper>; 2],
}

impl Decoder {
    /// Records layer `index` over all rows of the step.
    pub(super) fn layer(&mut self, pass: &mut Pass, index: usize, plan: &Plan) -> Result<(), ModelError> {
        self.enter(pass, self.layers[index].hyper[0].as_ref(), plan)?;
        if let Some(latent) = self.layers[index].latent() {
            self.latent_attention(pass, index, latent, plan)?;
        } else if let Some(compressed) = &self.layers[index].compressed {
            self.compressed_attention(pass, index, compressed, plan)?;
        } else {
            self.fetch_wishes(pass, index);
            self.head_attention(pass, index, plan)?;
        }
        self.leave(pass, plan.rows);
        self.enter(pass, self.layers[index].hyper[1].as_ref(), plan)?;
        self.mlp(pass, index, plan)?;
        self.leave(pass, plan.rows);
        Ok(())
    }

    /// Records attention of heads with keys and values of their own, and adds it to the residual.
    fn head_attention(&mut self, pass: &mut Pass, index: usize, plan: &Plan) -> Result<(), ModelError> {
        self.qkv(pass, &self.layers[index], plan)?;
        self.fetch_begun(pass, index, plan);
        self.rope_append(pass, index, plan.rows, plan.host_slots.is_some());
        self.select(pass, index, plan)?;
        self.attend(pass, index, plan);

        let (layer, a) = (&self.layers[index], &self.activations);
        if let Some(bias) = &layer.o_bias {
            self.bias(pass, bias, plan.rows, true, &a.hidden);
        }
        self.output(pass, layer, &a.attended, plan)
    }

    /// Adds what the output projection makes of `x` to the residual.
    pub(super) fn output(
        &self,
        pass: &mut Pass,
        layer: &Layer,
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let o = layer.o.as_ref().expect("heads have an output projection");
        let to = self.product(plan, x, &self.activations.hidden, self.config.hidden_size);
        o.multiply(&self.kernels, pass, &to)
    }

    /// Queries, keys and values of the normed residual stream, with biases and head norms.
    fn qkv(&self, pass: &mut Pass, layer: &Layer, plan: &Plan) -> Result<(), ModelError> {
        let (a, c) = (&self.activations, &self.config);
        let (rows, stride) = (plan.rows, self.qkv_stride());
        let norms = |matrix: &Matrix| matrix.norms(&self.kernels, rows, self.precision);
        let inside = layer.qkv.iter().all(|(matrix, _)| norms(matrix));
        let (x, norm) = self.normed(pass, &layer.attn_norm, rows, inside);
        let mut epilogue = Epilogue::Store;
        if let Some(bias) = &layer.qkv_bias {
            self.bias(pass, bias, rows, false, &a.qkv);
            epilogue = Epilogue::Add;
        }
        for (matrix, y_offset) in &layer.qkv {
            let to = self.product(plan, x, &a.qkv, stride);
            let product = Product { y_offset: *y_offset, epilogue, norm, ..to };
            matrix.multiply(&self.kernels, pass, &product)?;
        }
        if let Some([q, k]) = &layer.qk_norm {
            let params = |heads, first| NormHeadsParams {
                rows,
                heads,
                width: c.head_dim,
                stride,
                first,
                eps: c.rms_norm_eps,
                pad0: 0,
                pad1: 0,
            };
            self.norm_heads(pass, &params(c.num_heads, 0), q, &a.qkv);
            self.norm_heads(pass, &params(c.num_kv_heads, c.num_heads * c.head_dim), k, &a.qkv);
        }
        Ok(())
    }

    /// f32 of one row of queries, keys and values.
    pub(super) fn qkv_stride(&self) -> u32 {
        (self.config.num_heads + 2 * self.config.num_kv_heads) * self.config.head_dim
    }

    /// The rows that the attention of a layer reads.
    pub(super) fn view(&self, index: usize) -> &ViewInputs {
        &self.inputs.views[self.layers[index].view]
    }

    fn rope_append(&self, pass: &mut Pass, index: usize, rows: u32, on_host: bool) {
        let c = &self.config;
        let rotary = c.layers[index].rotary;
        let params = RopeAppendParams {
            rows,
            num_heads: c.num_heads,
            num_kv_heads: c.num_kv_heads,
            pairs: if rotary { c.rope.rotary_dims / 2 } else { 0 },
        };
        let (k, v) = self.kv.layer(index);
        // Where blocks are selected all live on the host.
        let device = self.residency.is_none().then_some((&self.view(index).slots, k, v));
        let rooms =
            self.staged.as_ref().map(|staged| staged.rooms(index)).map(|rooms| (&rooms[0], &rooms[1]));
        let host = rooms.or_else(|| self.kv.host_layer(index)).filter(|_| on_host);
        let host = host.map(|(k, v)| (&self.inputs.host_slots, k, v));
        let angles = if rotary { (&self.inputs.cs).into() } else { Bind::from(&self.inputs.temperatures) };
        // Every dispatch turns all queries; each row's keys and values go where one of them has a slot.
        for (slots, k, v) in device.into_iter().chain(host) {
            let bindings = [
                (&self.activations.qkv).into(),
                slots.into(),
                k.into(),
                v.into(),
                angles.clone(),
                (&self.activations.q).into(),
            ];
            let grid = rope_append::grid(self.kv.shape(), c.num_heads, rows);
            pass.dispatch(&self.pipelines.rope_append, &params, &bindings, grid);
        }
    }
}
