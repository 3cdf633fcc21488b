//! `cargo xtask select`: runs one sparse-attention policy on the q and k tensors of a file.

use std::fmt;
use std::fs;
use std::io::{self, Write};

use anyhow::{Context, Result, ensure};
use safetensors::{Dtype, SafeTensors};
use sparse_select::{Heads, MeasuredSelection, Registry, Spec};

use crate::cli::SelectArgs;
use crate::report::{self, Selected};

/// Runs the policy and prints which blocks it selects, with their density and recall.
///
/// # Errors
///
/// If the file does not contain the tensors, or they do not suit the policy.
pub fn run(args: &SelectArgs, registry: &Registry) -> Result<()> {
    let file = args.tensors.display();
    let outcome = fs::read(&args.tensors)
        .map_err(anyhow::Error::from)
        .and_then(|tensors| outcome(&tensors, &args.sparse.spec, registry))
        .with_context(|| format!("{file}"))?;
    let mut out = io::stdout().lock();
    if args.json {
        let MeasuredSelection { density, recall, bound, .. } = outcome;
        report::json_line(&mut out, &Selected { selected: outcome.selected(), density, recall, bound })?;
    } else {
        writeln!(out, "{}", Drawing(&outcome))?;
    }
    Ok(())
}

/// Runs a policy on the bytes of a safetensors file with the tensors q and k.
///
/// # Errors
/// If the bytes do not contain the tensors, or they do not suit the policy.
pub fn outcome(tensors: &[u8], spec: &Spec, registry: &Registry) -> Result<MeasuredSelection> {
    let tensors = Tensors::read(tensors)?;
    Ok(sparse_select::select(registry, spec, tensors.q.heads()?, tensors.k.heads()?)?)
}

/// The queries and keys of one sequence.
struct Tensors {
    q: Tensor,
    k: Tensor,
}

/// f32 of shape `[heads, len, head_dim]`.
struct Tensor {
    name: &'static str,
    shape: [usize; 3],
    data: Vec<f32>,
}

impl Tensors {
    fn read(bytes: &[u8]) -> Result<Self> {
        let file = SafeTensors::deserialize(bytes)?;
        Ok(Self { q: Tensor::of(&file, "q")?, k: Tensor::of(&file, "k")? })
    }
}

impl Tensor {
    fn of(file: &SafeTensors<'_>, name: &'static str) -> Result<Self> {
        let view = file.tensor(name)?;
        let (dtype, shape) = (view.dtype(), view.shape());
        ensure!(dtype == Dtype::F32, "tensor {name} is {dtype:?}, not F32");
        let shape = shape
            .try_into()
            .ok()
            .with_context(|| format!("tensor {name} has the shape {shape:?}, not [heads, len, head_dim]"))?;
        let (numbers, _) = view.data().as_chunks();
        let data: Vec<_> = numbers.iter().map(|&number| f32::from_le_bytes(number)).collect();
        let broken = data.iter().position(|number| !number.is_finite());
        ensure!(
            broken.is_none(),
            "tensor {name} holds {} at element {}",
            data[broken.unwrap_or(0)],
            broken.unwrap_or(0)
        );
        Ok(Self { name, shape, data })
    }

    fn heads(&self) -> Result<Heads<'_>> {
        Ok(Heads::new(self.name, &self.data, self.shape)?)
    }
}

/// One line per row of the selection, then density and recall.
struct Drawing<'a>(&'a MeasuredSelection);

impl fmt::Display for Drawing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MeasuredSelection { selection, density, recall, bound } = self.0;
        writeln!(f, "{selection}")?;
        write!(f, "density {density:.3}, recall {recall:.3}")?;
        bound.map_or(Ok(()), |bound| write!(f, ", certified mass {bound:.3}"))
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use safetensors::tensor::TensorView;

    use super::*;

    fn file(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (name.to_string(), TensorView::new(*dtype, shape.to_vec(), data).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// One query of ones, and keys of zeros except that of token 9: block 2 of four has nearly all the
    /// mass. Quest also keeps the last block.
    #[test]
    fn quest_finds_the_block_that_matters() {
        let mut keys = [0.0_f32; 16 * 4];
        keys[9 * 4..10 * 4].fill(8.0);
        let content = file(&[
            ("q", Dtype::F32, &[1, 1, 4], &bytes(&[1.0; 4])),
            ("k", Dtype::F32, &[1, 16, 4], &bytes(&keys)),
        ]);
        let spec: Spec = "quest:block_size=4,page_budget=2".parse().unwrap();
        let outcome = outcome(&content, &spec, &Registry::builtin()).unwrap();
        assert!(outcome.selected()[0][0].contains(&2), "{:?}", outcome.selected());
        assert!(outcome.recall > 0.99);
        assert_snapshot!(outcome.selection, @"..##");
        let drawn = Drawing(&outcome).to_string();
        assert!(
            drawn.lines().nth(1).unwrap().starts_with("density 0.") && drawn.contains("recall"),
            "{drawn}"
        );
    }

    #[test]
    fn tensors_that_do_not_fit_are_named() {
        let q: (&str, _, &[usize], &[u8]) = ("q", Dtype::F32, &[1, 1, 1], &[0; 4]);
        let refusal = |tensors: &[_]| format!("{:#}", Tensors::read(&file(tensors)).err().unwrap());
        let refused = [
            refusal(&[q]),
            refusal(&[q, ("k", Dtype::F16, &[1, 2, 1], &[0; 4])]),
            refusal(&[q, ("k", Dtype::F32, &[1, 1], &[0; 4])]),
            refusal(&[q, ("k", Dtype::F32, &[1, 2, 1], &bytes(&[0.0, f32::NAN]))]),
            format!("{:#}", Tensors::read(b"no tensors").err().unwrap()),
        ];
        assert_snapshot!(refused.join("\n"), @"
        tensor `k` not found
        tensor k is F16, not F32
        tensor k has the shape [1, 1], not [heads, len, head_dim]
        tensor k holds NaN at element 1
        header too large
        ");
    }
}
