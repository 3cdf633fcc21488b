//! Cases of `quantise` and `dequantise`.

use super::{Case, Spec, filled};
use crate::cpu::{self, Tolerance};
use crate::kernel::dequantise::DequantiseParams;
use crate::kernel::quantise::{self, Code, QuantiseParams};
use crate::{Variant, slot};

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (width, code) = (filled(variant, slot::WIDTH), filled(variant, quantise::CODE));
    let scale = filled(variant, quantise::SCALE);
    let (rows, first) = (spec.rows(5, 1..=40), spec.number(2, 0..=4));
    let row_stride = first + width + spec.number(1, 0..=4);
    let params = QuantiseParams { rows, row_stride, first, scale: spec.one_of(0.25, &[0.125, 0.25, 0.5]) };
    let case = Case::new("rows of eighths", variant, &params).costs(bytes(rows, width), 0.0);
    if spec.size().is_some() {
        return vec![case.floats_of(rows * row_stride).words_of(rows * width / 4).floats_of(rows)];
    }
    // Eighths up to 15.875, largest first, so that scales and quotients are exact and no two drivers round a tie apart.
    let mut x: Vec<f32> = spec
        .floats((rows * params.row_stride) as usize, 1)
        .iter()
        .map(|x| (x * 126.0).round() / 8.0)
        .collect();
    let largest = if code == Code::Int8 { 15.875 } else { 14.0 };
    x.iter_mut().for_each(|x| *x = x.clamp(-largest, largest));
    x.iter_mut().skip(first as usize).step_by(params.row_stride as usize).for_each(|x| *x = largest);
    let mut codes = vec![0; (rows * width) as usize];
    let mut scales = vec![f32::NAN; rows as usize];
    cpu::quantise::quantise(width as usize, (code, scale), &params, &x, &mut codes, &mut scales);
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(&codes);
    let case = case.binding(&x).words(&vec![0; words.len()], &words);
    vec![case.output(Tolerance { abs: 0.0, rel: 1e-6 }, &scales)]
}

/// Number of bytes of the f32, the codes and one scale per row.
fn bytes(rows: u32, width: u32) -> f64 {
    f64::from(rows) * f64::from(5 * width + 4)
}

pub(crate) fn dequantise(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (width, code) = (filled(variant, slot::WIDTH), filled(variant, quantise::CODE));
    let (rows, first) = (spec.rows(7, 1..=40), spec.number(1, 0..=4));
    let params = DequantiseParams { rows, row_stride: first + width + spec.number(4, 0..=4), first };
    let case = Case::new("every code", variant, &params).costs(bytes(rows, width), 0.0);
    if spec.size().is_some() {
        let case = case.words_of(rows * width / 4);
        return vec![case.floats_of(rows).floats_of(rows * params.row_stride)];
    }
    // Every code but the NaNs of e4m3.
    let codes: Vec<u8> =
        (0..=255_u8).filter(|code| code & 0x7f != 0x7f).cycle().take((rows * width) as usize).collect();
    let scales = spec.floats(rows as usize, 2);
    let mut x = vec![f32::NAN; (rows * params.row_stride) as usize];
    cpu::dequantise::dequantise(width as usize, code, &params, &codes, &scales, &mut x);
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(&codes);
    vec![case.binding(&words).binding(&scales).finite(Tolerance { abs: 0.0, rel: 1e-6 }, &x)]
}
