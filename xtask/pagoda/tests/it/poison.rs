//! Checkpoints with values that are not what training leaves.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use models::{Gguf, WeightSource as _};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use tempfile::{NamedTempFile, TempDir};

use crate::fixture;

/// Writes the model in fixture `name` with tensors of F32, and scales that are powers of two, as `change` leaves them.
pub(crate) fn checkpoint(name: &str, mut change: impl FnMut(&str, &mut [f32])) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&fixture(name), folder.path(), &mut change);
    folder
}

fn write(from: &Path, to: &Path, change: &mut dyn FnMut(&str, &mut [f32])) {
    fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let file = fs::read(from.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let changed = |(name, view): (String, TensorView<'_>)| {
        let mut bytes = view.data().to_vec();
        match kind(&name, view.dtype()) {
            Kind::Floats => change_floats(&mut bytes, |values| change(&name, values)),
            Kind::Exponents => change_exponents(&mut bytes, 1, |values| change(&name, values)),
            Kind::Codes => {}
        }
        (name, view.dtype(), view.shape().to_vec(), bytes)
    };
    let tensors: Vec<_> = file.tensors().into_iter().map(changed).collect();
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let file = serialize(views, None::<HashMap<String, String>>).unwrap();
    fs::write(to.join("model.safetensors"), file).unwrap();
}

/// Contents of a tensor.
enum Kind {
    Floats,
    /// A byte each, of the power of two that it is: the scales of MXFP4.
    Exponents,
    Codes,
}

fn kind(name: &str, dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F32 => Kind::Floats,
        Dtype::F8_E8M0 => Kind::Exponents,
        Dtype::U8 if name.ends_with("_scales") => Kind::Exponents,
        _ => Kind::Codes,
    }
}

fn change_floats(bytes: &mut [u8], change: impl FnOnce(&mut [f32])) {
    let mut values: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
    change(&mut values);
    bytes.copy_from_slice(bytemuck::cast_slice(&values));
}

/// Changes the first byte of every `stride`.
fn change_exponents(bytes: &mut [u8], stride: usize, change: impl FnOnce(&mut [f32])) {
    let places = || (0..bytes.len()).step_by(stride);
    let mut values: Vec<f32> = places().map(|at| (f32::from(bytes[at]) - 127.0).exp2()).collect();
    change(&mut values);
    for (at, value) in places().zip(values) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to the range of a byte"
        )]
        let exponent = (value.log2().round() + 127.0).clamp(0.0, 254.0) as u8;
        bytes[at] = if value.is_finite() { exponent } else { 255 };
    }
}

/// Names of the tensors of a fixture that [`checkpoint`] changes, without the numbers of layers and experts; each once.
pub(crate) fn groups(name: &str) -> Vec<String> {
    let file = fs::read(fixture(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let changed =
        file.tensors().into_iter().filter(|(name, view)| !matches!(kind(name, view.dtype()), Kind::Codes));
    once(changed.map(|(name, _)| group(&name)))
}

fn once(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// Writes the GGUF file of fixture `name` with tensors of F32, and scales of MXFP4, as `change` leaves them.
pub(crate) fn gguf(name: &str, mut change: impl FnMut(&str, &mut [f32])) -> NamedTempFile {
    let path = fixture(name).join("model.gguf");
    let mut bytes = fs::read(&path).unwrap();
    let file = Gguf::open(&path).unwrap();
    for name in file.names() {
        let tensor = file.get(name).unwrap().unwrap();
        // Random numbers are nowhere else in the file.
        let start = &tensor.data[..tensor.data.len().min(64)];
        let at = bytes.windows(start.len()).position(|window| window == start).expect("it is in the file");
        let bytes = &mut bytes[at..at + tensor.data.len()];
        match tensor.dtype {
            models::Dtype::F32 => change_floats(bytes, |values| change(name, values)),
            models::Dtype::MXFP4 => change_exponents(bytes, 17, |values| change(name, values)),
            other => panic!("{name} of {other}"),
        }
    }
    let changed = NamedTempFile::with_suffix(".gguf").unwrap();
    fs::write(changed.path(), bytes).unwrap();
    changed
}

/// Names of the tensors of a GGUF file, without the numbers of layers; each once.
pub(crate) fn gguf_groups(name: &str) -> Vec<String> {
    let file = Gguf::open(fixture(name).join("model.gguf")).unwrap();
    once(file.names().into_iter().map(group))
}

/// The name of a tensor without numbers.
pub(crate) fn group(name: &str) -> String {
    let part = |part: &str| {
        if part.bytes().all(|byte| byte.is_ascii_digit()) { "*".to_owned() } else { part.to_owned() }
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}
