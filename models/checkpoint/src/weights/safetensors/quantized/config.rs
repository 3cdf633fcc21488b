//! `quantization_config` of a `config.json`.

use serde_json::Value;

/// Layout of the matrices of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Quantization {
    /// Not quantised: each tensor has one storage type.
    #[default]
    None,
    /// MXFP4 in blocks and scales (gpt-oss).
    Mxfp4,
    /// fp8 with four exponent bits. There is one scale per block of rows and columns, per row, or per matrix.
    Fp8 {
        /// Rows and columns of a block.
        block: [usize; 2],
    },
    /// GPTQ.
    Gptq(Gptq),
    /// AWQ in 4 bits, of version `gemm`.
    Awq,
    /// Integers in the format of compressed-tensors: packed in words of 32 bits, or one per byte.
    CompressedInts {
        /// Number of bits of a code, 4 or 8.
        bits: u32,
    },
}

/// GPTQ, as its configuration states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gptq {
    /// Number of bits of a code, 4 or 8.
    pub bits: u32,
    /// Number to add to the stored zero points: 1 for the first format, which stores one less than the zero point, and 0
    /// for the second.
    pub zero_offset: u32,
}

/// An unsupported way of storing matrices.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value}")]
pub struct UnknownQuantization {
    /// The field.
    pub field: String,
    /// The value of the field.
    pub value: String,
}

/// Block of fp8 weights if no field states it.
const BLOCK: [usize; 2] = [128, 128];

impl Quantization {
    /// Reads the `quantization_config` of a configuration.
    ///
    /// # Errors
    /// A method, a format or a width that is not implemented.
    pub fn read(value: &Value) -> Result<Self, UnknownQuantization> {
        let section = Section { path: "quantization_config", value };
        match section.text("quant_method").unwrap_or_default() {
            "mxfp4" => Ok(Self::Mxfp4),
            "fp8" => {
                section.expect("fmt", &["e4m3"])?;
                Ok(Self::Fp8 { block: section.block("weight_block_size")? })
            }
            "gptq" => Ok(Self::Gptq(Gptq {
                bits: section.bits("bits")?,
                zero_offset: u32::from(section.text("checkpoint_format") != Some("gptq_v2")),
            })),
            "awq" => {
                section.expect("version", &["gemm", "GEMM"])?;
                match section.bits("bits")? {
                    4 => Ok(Self::Awq),
                    _ => Err(section.unknown("bits")),
                }
            }
            "compressed-tensors" => compressed(&section),
            _ => Err(section.unknown("quant_method")),
        }
    }

    /// Rows and columns of a block of fp8 weights.
    pub(super) fn block(self) -> [usize; 2] {
        match self {
            Self::Fp8 { block } => block,
            _ => BLOCK,
        }
    }
}

/// Reads the scheme of compressed-tensors, which all groups of layers must share.
fn compressed(section: &Section<'_>) -> Result<Quantization, UnknownQuantization> {
    let format = section.text("format").unwrap_or_default();
    let groups = section.value["config_groups"].as_object().into_iter().flat_map(|groups| groups.values());
    let mut found = None;
    for group in groups {
        let weights = Section { path: "quantization_config.config_groups.weights", value: &group["weights"] };
        let kind = weights.text("type").unwrap_or_default();
        let scheme = match (format, kind) {
            ("pack-quantized" | "int-quantized" | "naive-quantized", "int") => {
                Quantization::CompressedInts { bits: weights.bits("num_bits")? }
            }
            ("float-quantized" | "naive-quantized", "float") => match weights.bits("num_bits")? {
                8 => Quantization::Fp8 { block: weights.block("block_structure")? },
                _ => return Err(weights.unknown("num_bits")),
            },
            _ => return Err(section.unknown("format")),
        };
        match found {
            Some(before) if before != scheme => return Err(section.unknown("config_groups")),
            _ => found = Some(scheme),
        }
    }
    found.ok_or_else(|| section.unknown("config_groups"))
}

/// An object of a configuration, and its name in messages.
struct Section<'a> {
    path: &'static str,
    value: &'a Value,
}

impl Section<'_> {
    fn text(&self, field: &str) -> Option<&str> {
        self.value[field].as_str()
    }

    fn unknown(&self, field: &str) -> UnknownQuantization {
        let value = self.value[field].to_string().chars().take(60).collect();
        UnknownQuantization { field: format!("{}.{field}", self.path), value }
    }

    /// Rejects a text that is not one of `known`.
    fn expect(&self, field: &str, known: &[&str]) -> Result<(), UnknownQuantization> {
        match self.text(field) {
            Some(text) if !known.contains(&text) => Err(self.unknown(field)),
            _ => Ok(()),
        }
    }

    fn bits(&self, field: &str) -> Result<u32, UnknownQuantization> {
        match self.value[field].as_u64() {
            Some(4) => Ok(4),
            Some(8) => Ok(8),
            _ => Err(self.unknown(field)),
        }
    }

    fn block(&self, field: &str) -> Result<[usize; 2], UnknownQuantization> {
        if self.value[field].is_null() {
            return Ok(BLOCK);
        }
        let sizes: Option<Vec<usize>> = self.value[field].as_array().and_then(|sizes| {
            let size = |size: &Value| usize::try_from(size.as_u64()?).ok().filter(|size| *size > 0);
            sizes.iter().map(size).collect()
        });
        let sizes = sizes.and_then(|sizes| <[usize; 2]>::try_from(sizes).ok());
        sizes.ok_or_else(|| self.unknown(field))
    }
}
