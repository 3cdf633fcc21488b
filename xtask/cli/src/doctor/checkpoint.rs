//! A model in the report: the memory that it takes, and what works with it.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use indicatif::BinaryBytes;
use models::{AttentionForm, Dtype, KvPlan, Mode, WeightMemory};
use pagoda::{EngineOptions, IndexDtype, KvDtype, Model, host_available};
use serde::Serialize;

use super::line;
use crate::default_model;

/// Contexts whose KV cache is reported, in addition to the longest one.
const CONTEXTS: [u32; 3] = [4096, 16_384, 65_536];

/// A model and its needs.
#[derive(Debug, Serialize)]
pub struct CheckpointReport {
    /// File or folder.
    pub path: String,
    /// Family of the model, as the model's configuration calls it.
    pub family: Option<&'static str>,
    /// Number of elements of its weights.
    pub parameters: u64,
    /// Types of its weights after loading, the commonest first.
    pub types: Vec<&'static str>,
    /// Bytes of the weights on the device.
    pub weight_bytes: u64,
    /// Maximum number of tokens of a sequence.
    pub context: u32,
    /// Memory of the KV cache.
    pub kv: Vec<KvMemory>,
    /// Memory that the model must fit into, in bytes; null if the adapter does not report its memory.
    pub memory_bytes: Option<u64>,
    /// Whether there is a tokenizer.
    pub tokenizer: bool,
    /// Whether there is a chat template.
    pub chat_template: bool,
    /// All modes; a mode that does not work has the missing requirement.
    pub modes: Vec<ModeOf>,
}

/// Memory of a KV cache of one type for one sequence.
#[derive(Debug, Serialize)]
pub struct KvMemory {
    /// Element type.
    pub dtype: &'static str,
    /// Number of bytes of the cache at each context length, as pairs of tokens and bytes.
    pub bytes: Vec<(u32, u64)>,
    /// Maximum context length that fits next to the weights; null if the memory is not known, 0 if none does.
    pub fits_tokens: Option<u32>,
}

/// A mode, and whether it works with the model.
#[derive(Debug, Serialize)]
pub struct ModeOf {
    /// The mode.
    pub mode: String,
    /// Condition that the model does not meet; null if the mode works.
    pub needs: Option<&'static str>,
}

impl CheckpointReport {
    /// Opens a model and adds up the memory that it needs. It must fit into `memory` or, if that is `None` and the
    /// adapter `shares` the host's memory, into the host's.
    pub(super) fn of(
        model: &Path,
        quantize: Option<Dtype>,
        memory: Option<u64>,
        shares: bool,
    ) -> Result<Self> {
        let path = default_model::resolve(Some(model))?;
        let model = Model::open(&path)?;
        let model = match quantize {
            Some(dtype) => model.quantize(dtype)?,
            None => model,
        };
        let weights = WeightMemory::of(model.checkpoint(), &model.config)?;
        let form = AttentionForm::of(&model.config);
        let memory_bytes = memory.or_else(|| host_available().filter(|_| shares));
        // A tenth stays free, as the engine leaves it.
        let for_kv = memory_bytes.map(|bytes| (bytes / 10 * 9).saturating_sub(weights.device_bytes));
        let coded = Mode::CodedKv.lacks(form).is_none();
        let indexed = model.config.indexer.is_some();
        let fp8 = Some(IndexDtype::Fp8).filter(|_| indexed);
        let types = [
            (true, "f16", KvDtype::F16, None),
            (indexed, "f16, index keys fp8", KvDtype::F16, fp8),
            (coded, "int8", KvDtype::Int8, None),
            (coded && indexed, "fp8, index keys too", KvDtype::Fp8, fp8),
        ];
        let types = types.into_iter().filter(|(works, ..)| *works);
        let types = types
            .map(|(_, name, dtype, index)| (name, EngineOptions::new().kv_dtype(dtype).index_dtype(index)));
        let mode = |mode: Mode| ModeOf { mode: mode.to_string(), needs: mode.lacks(form) };
        Ok(Self {
            path: path.display().to_string(),
            family: model.config.family.model_type().or(model.config.family.architecture()),
            parameters: weights.elements,
            types: weights.types.iter().map(|(dtype, _)| dtype.name()).collect(),
            weight_bytes: weights.device_bytes,
            context: model.config.context_length,
            kv: types
                .map(|(name, options)| kv_memory(&model, name, &options, for_kv))
                .collect::<Result<_>>()?,
            memory_bytes,
            tokenizer: model.tokenizer.is_some(),
            chat_template: model.chat.is_some(),
            modes: Mode::ALL.into_iter().map(mode).collect(),
        })
    }
}

fn kv_memory(
    model: &Model,
    name: &'static str,
    options: &EngineOptions,
    free: Option<u64>,
) -> Result<KvMemory> {
    let plan = KvPlan::new(&model.config, options.kv())?;
    let bytes = |tokens: u32| {
        let blocks = model.max_used_blocks(options, options.chunk, u64::from(tokens))?;
        Ok::<_, anyhow::Error>(blocks * plan.block_bytes())
    };
    let longest = model.config.context_length;
    let told = CONTEXTS.into_iter().filter(|tokens| *tokens < longest).chain([longest]);
    let fits = |free: u64| {
        let (mut fits, mut too_many) = (0, longest + 1);
        while fits + 1 < too_many {
            let middle = fits + (too_many - fits) / 2;
            if bytes(middle)? <= free { fits = middle } else { too_many = middle }
        }
        Ok::<_, anyhow::Error>(fits)
    };
    Ok(KvMemory {
        dtype: name,
        bytes: told.map(|tokens| Ok((tokens, bytes(tokens)?))).collect::<Result<_>>()?,
        fits_tokens: free.map(fits).transpose()?,
    })
}

impl fmt::Display for CheckpointReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, family, parameters, types, weight_bytes, context, kv, memory_bytes, .. } = self;
        line(f, "checkpoint", path)?;
        let millions = parameters / 1_000_000;
        let family = family.unwrap_or("of no name");
        line(f, "", format_args!("family {family}, {millions} million parameters in {}", types.join(", ")))?;
        let part = |there: bool| if there { "a" } else { "no" };
        let (tokenizer, template) = (part(self.tokenizer), part(self.chat_template));
        line(
            f,
            "",
            format_args!(
                "{tokenizer} tokenizer, {template} chat template, contexts of up to {context} tokens"
            ),
        )?;
        line(f, "", format_args!("weights {} on the device", BinaryBytes(*weight_bytes)))?;
        for KvMemory { dtype, bytes, fits_tokens } in kv {
            let at = |(tokens, bytes): &(u32, u64)| format!("{} at {tokens} tokens", BinaryBytes(*bytes));
            let at: Vec<_> = bytes.iter().map(at).collect();
            line(f, "", format_args!("KV in {dtype}: {}", at.join(", ")))?;
            if let (Some(tokens), Some(memory)) = (fits_tokens, memory_bytes) {
                let fits = match tokens {
                    0 => {
                        "the weights alone do not fit; --weights-on-gpu leaves some in host memory".to_owned()
                    }
                    tokens if tokens == context => "the whole context fits".to_owned(),
                    tokens => format!("{tokens} tokens fit"),
                };
                line(f, "", format_args!("    into {}, a tenth left free: {fits}", BinaryBytes(*memory)))?;
            }
        }
        if memory_bytes.is_none() {
            line(
                f,
                "",
                "the adapter does not say how much memory it has: --memory 8GiB says what fits there",
            )?;
        }
        for ModeOf { mode, needs } in &self.modes {
            match needs {
                None => line(f, "", format_args!("{mode}: yes"))?,
                Some(needs) => line(f, "", format_args!("{mode}: no, it needs {needs}"))?,
            }
        }
        Ok(())
    }
}
