//! Checkpoints with values that are not what training leaves.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use tempfile::TempDir;

use crate::fixture;

/// Writes the model in fixture `name` with tensors of F32 as `change` leaves them.
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
        if view.dtype() == Dtype::F32 {
            let mut values: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
            change(&name, &mut values);
            bytes = bytemuck::cast_slice(&values).to_vec();
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

/// Names of the tensors of F32 of a fixture, without the numbers of layers and experts; each once.
pub(crate) fn groups(name: &str) -> Vec<String> {
    let file = fs::read(fixture(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let floats = file.tensors().into_iter().filter(|(_, view)| view.dtype() == Dtype::F32);
    let mut groups: Vec<String> = floats.map(|(name, _)| group(&name)).collect();
    groups.sort();
    groups.dedup();
    groups
}

/// The name of a tensor without numbers.
pub(crate) fn group(name: &str) -> String {
    let part = |part: &str| {
        if part.bytes().all(|byte| byte.is_ascii_digit()) { "*".to_owned() } else { part.to_owned() }
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}
