//! Quantises the matrices of a checkpoint while they are loaded.

use std::borrow::Cow;
use std::num::NonZero;
use std::path::Path;
use std::thread;

use super::Checkpoint;
use crate::weights::quantize_into;
use crate::{
    DecoderConfig, Dtype, ExpertPacking, IntegerTensor, Naming, Role, Size, Tensor, WeightError,
    WeightSource, dequantize,
};

/// A checkpoint whose matrices are quantised when they are requested by role: see [`Checkpoint::quantize`].
#[derive(Debug)]
pub struct Quantized {
    pub(super) checkpoint: Checkpoint,
    pub(super) to: Dtype,
    tied: bool,
    /// Whether input features precede output features in tensors that hold all experts.
    experts_transposed: bool,
}

impl Quantized {
    /// Creates a checkpoint whose matrices are quantised when they are loaded.
    ///
    /// # Errors
    ///
    /// The errors are those of [`Checkpoint::quantize`].
    pub(super) fn new(
        checkpoint: Checkpoint,
        config: &DecoderConfig,
        to: Dtype,
    ) -> Result<Self, WeightError> {
        if !Dtype::TARGETS.contains(&to) {
            return Err(WeightError::Target { dtype: to });
        }
        let packing = config.moe.as_ref().map(|moe| moe.packing);
        let experts_transposed = packing.is_some_and(|packing| packing != ExpertPacking::Rows);
        let new = Self { checkpoint, to, tied: config.tie_embeddings, experts_transposed };
        let path = new.path().to_owned();
        let plain = matrices(config).any(|role| {
            let stored = new.checkpoint.weights().tensor(role);
            stored.is_ok_and(|tensor| new.target(role, &tensor).is_some())
        });
        if plain { Ok(new) } else { Err(WeightError::NothingToQuantize { path, dtype: to }) }
    }

    /// Returns the type that a stored tensor is quantised to, or `None` if it stays as it is.
    pub(super) fn target(&self, role: Role, tensor: &Tensor<'_>) -> Option<Dtype> {
        // Codes of fp8 are floats, that one may want smaller.
        let quantised = tensor.dtype.block_elems() > 1 && tensor.dtype != Dtype::F8_E4M3;
        if quantised || tensor.shape.len() < 2 || !is_matrix(role) {
            return None;
        }
        let head = role == Role::LmHead || role == Role::Embed && self.tied;
        let width = match tensor.shape[..] {
            [.., width, _] if self.transposes(role) => width,
            [.., width] => width,
            [] => return None,
        };
        let fits = |dtype: &Dtype| width.is_multiple_of(dtype.block_elems());
        let smallest = |dtype: Dtype| if fits(&dtype) { Some(dtype) } else { substitute(dtype).filter(fits) };
        // Logits are worth more than what they cost: six bits at least, as in llama.cpp.
        smallest(if head && self.to != Dtype::Q8_0 { Dtype::Q6_K } else { self.to })
    }

    fn transposes(&self, role: Role) -> bool {
        let of_all = matches!(
            role,
            Role::ExpertsGateUp(_) | Role::ExpertsGate(_) | Role::ExpertsUp(_) | Role::ExpertsDown(_)
        );
        of_all && self.experts_transposed
    }

    fn quantized<'t>(&self, role: Role, tensor: Tensor<'t>, made: Made<'_>) -> Tensor<'t> {
        let Some(dtype) = self.target(role, &tensor) else { return tensor };
        let by_rows = match self.transposes(role) {
            true => quantize_columns(&tensor, dtype, made),
            false => quantize_rows(&tensor, dtype, made),
        };
        Tensor { data: by_rows.into(), ..self.outlined(role, tensor, dtype) }
    }

    /// Returns the tensor with the type and shape that it has when it is quantised, but without data.
    fn outlined<'t>(&self, role: Role, tensor: Tensor<'t>, dtype: Dtype) -> Tensor<'t> {
        let mut shape = tensor.shape;
        if self.transposes(role) {
            let last = shape.len() - 1;
            shape.swap(last - 1, last);
        }
        Tensor { name: tensor.name, dtype, shape, data: Cow::Borrowed(&[]) }
    }
}

/// Returns the type that llama.cpp uses in place of `dtype` for rows that are not whole blocks of 256.
fn substitute(dtype: Dtype) -> Option<Dtype> {
    match dtype {
        Dtype::Q4_K => Some(Dtype::Q5_0),
        Dtype::Q5_K => Some(Dtype::Q5_1),
        Dtype::Q6_K => Some(Dtype::Q8_0),
        _ => None,
    }
}

/// Whether a role is quantised: the matrices that dominate the time of steps. Norms, biases, routers, indexer projections and
/// mixes of residual streams are not, nor are projections that are divided by head.
fn is_matrix(role: Role) -> bool {
    matches!(
        role,
        Role::Embed
            | Role::LmHead
            | Role::Q(_)
            | Role::K(_)
            | Role::V(_)
            | Role::O(_)
            | Role::Qkv(_)
            | Role::Gate(_)
            | Role::Up(_)
            | Role::GateUp(_)
            | Role::Down(_)
            | Role::QA(_)
            | Role::QB(_)
            | Role::KvA(_)
            | Role::Kv(_)
            | Role::OA(_)
            | Role::OB(_)
            | Role::ExpertsGateUp(_)
            | Role::ExpertsGate(_)
            | Role::ExpertsUp(_)
            | Role::ExpertsDown(_)
            | Role::ExpertGate(..)
            | Role::ExpertUp(..)
            | Role::ExpertDown(..)
            | Role::SharedGate(_)
            | Role::SharedUp(_)
            | Role::SharedDown(_)
    )
}

/// Returns roles of matrices, one per kind and layer.
fn matrices(config: &DecoderConfig) -> impl Iterator<Item = Role> {
    let layer = |l| {
        [
            [Role::Q(l), Role::Qkv(l), Role::O(l), Role::QA(l), Role::KvA(l), Role::Kv(l)],
            [Role::Gate(l), Role::Up(l), Role::GateUp(l), Role::Down(l), Role::SharedUp(l), Role::OB(l)],
            [
                Role::ExpertsGateUp(l),
                Role::ExpertsUp(l),
                Role::ExpertsDown(l),
                Role::ExpertUp(l, 0),
                Role::ExpertDown(l, 0),
                Role::K(l),
            ],
        ]
        .concat()
    };
    [Role::Embed, Role::LmHead].into_iter().chain((0..config.num_layers).flat_map(layer))
}

/// Callback for each quantised part of a tensor.
type Made<'a> = &'a (dyn Fn(Size) + Sync);

/// Number of bytes of rows between reports.
const TOLD: usize = 1 << 20;

/// Quantises rows.
fn quantize_rows(tensor: &Tensor<'_>, to: Dtype, made: Made<'_>) -> Vec<u8> {
    let width = tensor.shape[tensor.shape.len() - 1];
    let row_bytes = tensor.dtype.bytes_for(width).expect("rows are of whole blocks");
    by_rows([tensor.elems() / width.max(1), width], to, made, |row, values| {
        dequantize(tensor.dtype, &tensor.data[row * row_bytes..][..row_bytes], values);
    })
}

/// Quantises the columns of matrices, the last two extents; each column becomes a row.
fn quantize_columns(tensor: &Tensor<'_>, to: Dtype, made: Made<'_>) -> Vec<u8> {
    let [width, columns] = [tensor.shape[tensor.shape.len() - 2], tensor.shape[tensor.shape.len() - 1]];
    let bytes = tensor.dtype.block_bytes();
    by_rows([tensor.elems() / width.max(1), width], to, made, |row, values| {
        let first = row / columns * width * columns + row % columns;
        for (i, value) in values.iter_mut().enumerate() {
            let element = &tensor.data[(first + i * columns) * bytes..][..bytes];
            dequantize(tensor.dtype, element, std::slice::from_mut(value));
        }
    })
}

/// Quantises `[rows, width]` numbers on all processors; `read` returns one row.
fn by_rows(
    [rows, width]: [usize; 2],
    to: Dtype,
    made: Made<'_>,
    read: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<u8> {
    let row_bytes = to.bytes_for(width).expect("the target was chosen by the width");
    let mut out = vec![0; rows * row_bytes];
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let share = rows.div_ceil(workers).max(1);
    let told = (TOLD / row_bytes.max(1)).max(1);
    thread::scope(|scope| {
        for (worker, part) in out.chunks_mut((share * row_bytes).max(1)).enumerate() {
            let read = &read;
            scope.spawn(move || {
                let mut values = vec![0.0; width];
                let mut row = worker * share;
                for rows in part.chunks_mut((told * row_bytes).max(1)) {
                    for out in rows.chunks_exact_mut(row_bytes) {
                        read(row, &mut values);
                        quantize_into(to, &values, out);
                        row += 1;
                    }
                    let elements = rows.len() / row_bytes.max(1) * width;
                    made(Size { bytes: rows.len() as u64, elements: elements as u64 });
                }
            });
        }
    });
    out
}

impl WeightSource for Quantized {
    fn path(&self) -> &Path {
        self.checkpoint.weights().path()
    }

    fn naming(&self) -> Naming {
        self.checkpoint.weights().naming()
    }

    fn names(&self) -> Vec<&str> {
        self.checkpoint.weights().names()
    }

    /// Returns the tensor as it is stored, since only a role decides whether it is quantised.
    fn get(&self, name: &str) -> Result<Option<Tensor<'_>>, WeightError> {
        self.checkpoint.weights().get(name)
    }

    fn get_integers(&self, name: &str) -> Result<Option<IntegerTensor>, WeightError> {
        self.checkpoint.weights().get_integers(name)
    }

    fn integers(&self, role: Role) -> Result<IntegerTensor, WeightError> {
        self.checkpoint.weights().integers(role)
    }

    fn tensor(&self, role: Role) -> Result<Tensor<'_>, WeightError> {
        self.tensor_by_parts(role, &|_| {})
    }

    fn tensor_by_parts(&self, role: Role, made: Made<'_>) -> Result<Tensor<'_>, WeightError> {
        Ok(self.quantized(role, self.checkpoint.weights().tensor(role)?, made))
    }

    fn outline(&self, role: Role) -> Result<Tensor<'_>, WeightError> {
        let tensor = self.checkpoint.weights().outline(role)?;
        Ok(match self.target(role, &tensor) {
            Some(dtype) => self.outlined(role, tensor, dtype),
            None => tensor,
        })
    }

    fn has(&self, role: Role) -> bool {
        self.checkpoint.weights().has(role)
    }

    fn whole(&self, name: &str) -> Option<String> {
        self.checkpoint.weights().whole(name)
    }

    fn contains(&self, name: &str) -> bool {
        self.checkpoint.weights().contains(name)
    }
}
