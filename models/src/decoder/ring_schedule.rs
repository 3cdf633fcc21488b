//! Schedule of rows and tiles whose keys pass through the ring: all of them attend a chunk while it is on the device.

use std::ops::Range;

use super::batch::Dense;
use super::keys::{RingKeys, RingLoad, Stream};
use super::ops::Ctx;
use crate::ModelError;
use crate::kv::KeysIn;

/// Keys that one dispatch attends.
#[derive(Clone, Copy)]
pub(super) struct KeyRange {
    pub(super) first: u32,
    pub(super) len: u32,
    /// Position after the last key that some row attends.
    pub(super) end: u32,
    /// The buffers that hold the keys.
    pub(super) at: KeysIn,
}

/// Rows or tiles that attend chunk by chunk.
pub(super) trait RingAttention {
    /// Returns the range of keys that at least one of the rows sees.
    fn seen(&self) -> Range<u32>;

    /// Records the attention to a chunk.
    fn attend(&mut self, ctx: &mut Ctx<'_>, keys: KeyRange);

    /// Records the work after the last chunk.
    fn end(&mut self, ctx: &mut Ctx<'_>);
}

/// Rows and tiles of one ring group, which attend its chunks together.
pub(super) struct RingTask<'a> {
    pub(super) group: usize,
    pub(super) attending: Vec<Box<dyn RingAttention + 'a>>,
}

impl RingTask<'_> {
    /// Returns the chunks that at least one of the task's rows sees.
    fn chunks<'s>(&self, stream: &'s Stream) -> impl Iterator<Item = usize> + use<'s> {
        let seen: Vec<Range<u32>> = self.attending.iter().map(|attending| attending.seen()).collect();
        let chunks = stream.groups[self.group].chunks.iter().enumerate();
        chunks.filter(move |(_, chunk)| seen.iter().any(|seen| overlaps(seen, &chunk.keys))).map(|(n, _)| n)
    }
}

fn overlaps(a: &Range<u32>, b: &Range<u32>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Records a schedule, task by task.
///
/// # Errors
/// Errors of the device.
pub(super) fn run_schedule(
    ctx: &mut Ctx<'_>,
    layer: usize,
    stream: &Stream,
    mut schedule: Vec<RingTask<'_>>,
) -> Result<(), ModelError> {
    if ctx.kv.is_in_place() {
        // Dirty blocks are attended in place.
        ctx.on_ring(RingKeys::save);
    }
    let of = |(task, of_task): (usize, &RingTask<'_>)| of_task.chunks(stream).map(move |chunk| (task, chunk));
    let visits: Vec<(usize, usize)> = schedule.iter().enumerate().flat_map(of).collect();
    let groups: Vec<usize> = schedule.iter().map(|task| task.group).collect();
    let load = |visit: &(usize, usize)| stream.load(layer, groups[visit.0], visit.1);
    for (n, visit) in visits.iter().enumerate() {
        let rest = &visits[n + 1..];
        let goes_on = rest.first().is_some_and(|next| next.0 == visit.0);
        let next = rest.iter().map(load).find(RingLoad::moves).or_else(|| first_load(ctx, layer + 1));
        let this = load(visit);
        let at = ctx
            .on_ring(|ring, context| ring.bring(context, this, next))
            .expect("streams pass through a ring")?;
        let keys = &this.contents.keys;
        for attending in &mut schedule[visit.0].attending {
            let seen = attending.seen();
            if overlaps(&seen, keys) {
                let range = KeyRange { first: keys.start, len: keys.end - keys.start, end: seen.end, at };
                attending.attend(ctx, range);
            }
        }
        if !goes_on {
            schedule[visit.0].attending.iter_mut().for_each(|attending| attending.end(ctx));
        }
    }
    Ok(())
}

/// Returns the first chunk of a layer that has to be copied to the ring; `None` if the layer has no such chunk.
fn first_load<'a>(ctx: &Ctx<'a>, layer: usize) -> Option<RingLoad<'a>> {
    let (index, attn_group) = (layer < ctx.config.layers.len())
        .then(|| (ctx.attn_groups.of_layers[layer], ctx.group_rows(layer)))?;
    let selects =
        !attn_group.selecting.is_empty() && ctx.keys.pages().is_some_and(|pages| pages.selects(layer));
    let stream = ctx.offload_plan.stream(index, if selects { Dense::Whole } else { Dense::All })?;
    let groups = stream.groups.iter().enumerate();
    let chunks = groups.flat_map(|(g, group)| (0..group.chunks.len()).map(move |chunk| (g, chunk)));
    chunks.map(|(group, chunk)| stream.load(layer, group, chunk)).find(RingLoad::moves)
}
