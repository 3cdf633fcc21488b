//! Policies that score, on the CPU: queries and new keys are read back in every layer.

use attn_kernels::gpu::Pass;
use sparse_select::Heads;
use sparse_select::certificate::selection_mass;

use super::Chosen;
use super::mirror::Mirror;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::decoder::inputs::Plan;

impl Decoder {
    /// Selects the blocks of a layer between the write of its keys and its attention.
    pub(in crate::decoder) fn select(
        &mut self,
        pass: &mut Pass,
        layer: usize,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let Some(sparse) = &self.sparse else { return Ok(()) };
        let rows = &plan.views[self.layers[layer].view];
        if sparse.asks_in(rows, layer) {
            return self.select_on_host(pass, layer, plan);
        }
        self.select_on_device(pass, layer, rows);
        self.estimate_on_device(pass, layer, rows);
        Ok(())
    }

    /// The policy's own code, once the pass so far has run.
    fn select_on_host(&mut self, pass: &mut Pass, layer: usize, plan: &Plan) -> Result<(), ModelError> {
        let sparse = self.sparse.as_mut().expect("only a sparse decoder selects");
        let view = &plan.views[self.layers[layer].view];
        let tables = view.chosen.iter().flat_map(|chosen| {
            let len = chosen.kv_len().div_ceil(self.kv.shape().block_size as usize);
            &plan.tables[chosen.table.start..chosen.table.start + len]
        });
        let missing = sparse.mirror.read_missing(pass, &self.kv, layer, tables);
        let width = self.config.num_heads as usize * self.config.head_dim as usize;
        let q = pass.read(&self.activations.q, 0..plan.rows as usize * width);
        let so_far = std::mem::replace(pass, Pass::new("step"));
        let mut done = self.gpu.submit(so_far)?.wait()?;
        sparse.timings.append(&mut done.timings);
        for (block, read) in missing {
            sparse.mirror.insert(layer, block, &done.get(read));
        }
        let q = done.get(q);

        let heads =
            [self.config.num_heads, self.config.num_kv_heads, self.config.head_dim].map(|n| n as usize);
        let mut selections = Vec::with_capacity(view.chosen.len());
        let mut masses = Vec::new();
        let digests = sparse.mirror.digests();
        for (index, chosen) in view.chosen.iter().enumerate() {
            let (q, k) = tensors(chosen, &q, heads, &sparse.mirror, layer, plan);
            let q = Heads::new("q", &q, [heads[0], chosen.rows, heads[2]])?;
            let k = Heads::new("k", &k, [heads[1], chosen.kv_len(), heads[2]])?;
            let selection = match sparse.source[layer] {
                Some(_) => sparse.last[index].clone(),
                None => sparse.options.select(chosen, layer, Some((q, k)), digests)?,
            };
            if sparse.options.measure {
                let attended =
                    sparse.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
                sparse.options.measure_into(attended, chosen, &selection, layer, (q, k))?;
            }
            if sparse.options.policy.certifies() {
                let block = sparse.options.policy.block_size();
                masses.push(selection_mass(&selection, &q, &k, block, digests)?);
            }
            selections.push(selection);
        }
        sparse.place(&self.gpu, view, layer, &selections)?;
        sparse.last.clone_from(&selections);
        let masses = Some(&masses[..]).filter(|masses| !masses.is_empty());
        sparse.count(view, layer, selections, masses);
        Ok(())
    }
}

/// Queries `[num_heads, rows, head_dim]` and keys `[num_kv_heads, kv_len, head_dim]` of chosen rows; `q` holds all rows
/// of the step, `[rows, num_heads, head_dim]`.
fn tensors(
    chosen: &Chosen,
    q: &[f32],
    [num_heads, _, head_dim]: [usize; 3],
    mirror: &Mirror,
    layer: usize,
    plan: &Plan,
) -> (Vec<f32>, Vec<f32>) {
    let mut by_head = Vec::with_capacity(chosen.rows * num_heads * head_dim);
    for head in 0..num_heads {
        for row in chosen.row..chosen.row + chosen.rows {
            by_head.extend_from_slice(&q[(row * num_heads + head) * head_dim..][..head_dim]);
        }
    }
    (by_head, mirror.keys(layer, &plan.tables[chosen.table.clone()], chosen.kv_len()))
}
