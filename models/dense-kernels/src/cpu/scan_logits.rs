//! Reference of `scan_logits`.

use super::f32_of;
use super::sample::{gumbel, takes_all};
use crate::kernel::sample::Spec;
use crate::kernel::scan_logits::LANES;

/// Largest logits of blocks and parts, and candidates and masses of parts, that [`scan_logits`] finds in rows of logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    /// The largest logit of each block, `[rows, parts * LANES]`; minus infinity for a block without tokens.
    pub maxima: Vec<f32>,
    /// Largest logit of each part, score of its candidate relative to that logit, mass of the part, and 0,
    /// `[rows, parts]`.
    pub values: Vec<[f32; 4]>,
    /// Tokens of the largest logit and of the candidate of each part, `[rows, parts]`.
    pub ids: Vec<[u32; 2]>,
}

/// Scans `logits` `[rows, vocab]` in blocks of `each` tokens; `specs` is empty if nothing is drawn. Logits that are not
/// finite count as plus infinity, except minus infinity if it stands for forbidden tokens.
#[must_use]
pub fn scan_logits(each: u32, vocab: usize, logits: &[f32], specs: &[Spec]) -> Scan {
    let mut scan = Scan::default();
    for (row, logits) in logits.chunks_exact(vocab).enumerate() {
        let masked = specs.get(row).is_none_or(|spec| spec.masked == 1);
        let is_good = |logit: f32| logit.is_finite() || masked && logit == f32::NEG_INFINITY;
        let logits: Vec<f32> =
            logits.iter().map(|logit| if is_good(*logit) { *logit } else { f32::INFINITY }).collect();
        for (part, logits) in (0..).zip(logits.chunks((each * LANES) as usize)) {
            let first = part * each * LANES;
            let block = |lane| logits.iter().skip(lane).step_by(LANES as usize);
            let largest = |lane| block(lane).copied().fold(f32::NEG_INFINITY, f32::max);
            scan.maxima.extend((0..LANES as usize).map(largest));
            let spec = specs.get(row).filter(|spec| spec.temperature > 0.0 && takes_all(vocab, spec));
            let (values, ids) = part_of(logits, first, spec);
            scan.values.push(values);
            scan.ids.push(ids);
        }
    }
    scan
}

/// Values and ids of a part that begins at token `first`.
fn part_of(logits: &[f32], first: u32, spec: Option<&Spec>) -> ([f32; 4], [u32; 2]) {
    let largest = |scores: &mut dyn Iterator<Item = f64>| {
        let best = |a: (u32, f64), b: (u32, f64)| if b.1 > a.1 { b } else { a };
        (first..).zip(scores).reduce(best).expect("a part has tokens")
    };
    let (top_id, top) = largest(&mut logits.iter().copied().map(f64::from));
    let Some(spec) = spec.filter(|_| top.is_finite()) else {
        return ([f32_of(top), f32::NEG_INFINITY, 0.0, 0.0], [top_id, u32::MAX]);
    };
    let scaled = |logit: &f32| (f64::from(*logit) - top) / f64::from(spec.temperature);
    let scores = (first..).zip(logits).map(|(id, logit)| scaled(logit) + gumbel(spec, id));
    let (id, score) = largest(&mut { scores });
    let mass: f64 = logits.iter().map(|logit| scaled(logit).exp()).sum();
    ([f32_of(top), f32_of(score), f32_of(mass), 0.0], [top_id, id])
}
