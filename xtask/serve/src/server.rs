//! State that all calls share: the engine, the model, and the places of calls in preparation.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::available_parallelism;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use pagoda::snapshot::{Activity, BlockView};
use pagoda::tools::{AnswerParser, Tools};
use pagoda::{
    Constraint, Conversation, Embedding, EngineHandle, Health, Model, Replicas, Snapshot, TokenMask,
};
use tokio::sync::Semaphore;
use tokio::task;
use tracing::{error, info};

use crate::bodies::Bodies;
use crate::comparison::Comparison;
use crate::engine_use::{EngineUse, Recent};
use crate::error::ApiError;
use crate::feed::Feed;
use crate::fields::Reader;
use crate::keys::{ApiKey, Client, Keys};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::output_format::OutputFormat;

/// Model name by which every server can be called.
const ANY_MODEL: &str = "default";

/// The state of a server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engines: Replicas,
    pub(crate) options: Options,
    keys: RwLock<Keys>,
    pub(crate) bodies: Bodies,
    pub(crate) metrics: Metrics,
    pub(crate) recent: Recent,
    /// Events of each engine for clients that watch the live page.
    pub(crate) feeds: Vec<Feed>,
    /// Embeddings of the model, or the reason why this server cannot compute them.
    pub(crate) embedding: Result<Embedding, String>,
    /// The way in which the model compares texts, or the reason why it does not.
    pub(crate) comparison: Result<Comparison, String>,
    /// Start of the server, in seconds since 1970.
    pub(crate) created: u64,
    /// Whether the server is about to end, and takes no more calls.
    draining: AtomicBool,
    /// Number of calls whose prompts are being encoded.
    preparing: AtomicUsize,
    /// Number of calls for which a seed was drawn.
    seeded: AtomicU64,
    /// Permits for work that keeps a processor busy, one per core.
    cores: Arc<Semaphore>,
    /// Permit for compiling a constraint, which may take long: one at a time, so that prompts are encoded meanwhile.
    compiler: Arc<Semaphore>,
}

/// A conversation as a prompt.
#[derive(Debug)]
pub(crate) struct Prompted {
    pub(crate) ids: Vec<u32>,
    /// Whether the prompt ends with the beginning of a thought.
    pub(crate) thinks: bool,
}

/// A place among the calls that are being prepared.
#[derive(Debug)]
pub(crate) struct PreparationPlace(Arc<Server>);

impl Drop for PreparationPlace {
    fn drop(&mut self) {
        self.0.preparing.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    pub(crate) fn new(engines: Replicas, options: Options) -> Self {
        let embedding = options.model.checkpoint().embedding().map_err(|error| error.to_string());
        Self {
            feeds: engines.engines().iter().map(|_| Feed::default()).collect(),
            engines,
            keys: RwLock::new(Keys::new(&options.api_keys)),
            bodies: Bodies::new(options.max_held_bytes),
            metrics: Metrics::default(),
            recent: Recent::default(),
            comparison: Comparison::of(&options.model, &embedding),
            embedding,
            options,
            created: unix_seconds(),
            draining: AtomicBool::new(false),
            preparing: AtomicUsize::new(0),
            seeded: AtomicU64::new(0),
            cores: Arc::new(Semaphore::new(available_parallelism().map_or(1, usize::from))),
            compiler: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns the seed of a call that names none.
    pub(crate) fn seed(&self) -> u64 {
        self.options.seed.map_or_else(rand::random, |first| {
            first.wrapping_add(self.seeded.fetch_add(1, Ordering::Relaxed))
        })
    }

    /// Number of KV blocks in total and in use, summed over all engines.
    pub(crate) fn blocks(&self) -> BlockView {
        let blocks = self.engines.engines().iter().map(|engine| engine.snapshot().blocks);
        let sum = |mut sum: BlockView, of: BlockView| {
            (sum.total, sum.used) = (sum.total + of.total, sum.used + of.used);
            sum
        };
        blocks.reduce(sum).expect("at least one engine")
    }

    /// Whether the engines write their blocks to a store that other servers may share.
    pub(crate) fn shares_blocks(&self) -> bool {
        self.engines.engines().iter().all(|engine| engine.snapshot().tiers.remote.is_some())
    }

    /// Refuses a call, before its body is read, if the queue is full or the server about to end.
    pub(crate) fn check_queue(&self) -> Result<(), ApiError> {
        self.ready()?;
        let bounds = self.engines.options();
        let waiting = self.engines.num_waiting() + self.preparing.load(Ordering::Relaxed);
        if waiting >= bounds.max_waiting {
            let max = bounds.max_waiting;
            self.metrics.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(ApiError::busy(format!("{waiting} requests are waiting, the limit is {max}")));
        }
        let (tokens, max) = (self.engines.num_waiting_tokens(), bounds.max_waiting_tokens);
        if tokens >= max {
            self.metrics.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(ApiError::busy(format!("{tokens} prompt tokens are waiting, the limit is {max}")));
        }
        Ok(())
    }

    /// Accepts a call and gives it a place, before its prompts are encoded.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<PreparationPlace, ApiError> {
        self.check_queue()?;
        self.preparing.fetch_add(1, Ordering::Relaxed);
        Ok(PreparationPlace(Arc::clone(self)))
    }

    /// Refuses calls once the server is about to end, or the engine has failed.
    pub(crate) fn ready(&self) -> Result<(), ApiError> {
        if self.draining.load(Ordering::Acquire) {
            return Err(ApiError::ending());
        }
        match self.engines.health() {
            Health::Ended => Err(ApiError::busy("the engine has stopped").with_code("engine_stopped")),
            Health::Stalled => {
                let time = self.engines.step_time().unwrap_or_default().as_secs_f64();
                let message = format!("a step of the engine has taken {time:.1} seconds and has not ended");
                Err(ApiError::busy(message).with_code("engine_stalled"))
            }
            Health::Reopening => {
                let message = "the device was lost, and the engine is being opened anew";
                Err(ApiError::busy(message).with_code("engine_reopening"))
            }
            _ => Ok(()),
        }
    }

    /// A reader of a call's body.
    pub(crate) fn reader(&self) -> Reader {
        Reader::new(self.options.strict, self.options.model.default_sampling())
    }

    /// Returns the caller with these headers; `None` if their key is not accepted.
    pub(crate) fn client(&self, headers: &HeaderMap) -> Option<Client> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).client(headers)
    }

    /// Reads the keys and the certificate again. If a file cannot be read, its old contents stay in use.
    pub(crate) fn reload(&self) {
        if let Some(path) = &self.options.api_key_file {
            let read = fs::read_to_string(path).map_err(|error| error.to_string());
            match read.and_then(|text| ApiKey::read_all(&text).map_err(|error| error.to_string())) {
                Ok(keys) => {
                    let mut known = self.keys.write().unwrap_or_else(PoisonError::into_inner);
                    *known = known.replaced(&keys);
                    info!(path = %path.display(), keys = keys.len(), "the API keys were read again");
                }
                Err(error) => {
                    error!(path = %path.display(), error, "the API keys stay as they are");
                }
            }
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.options.connections.tls {
            match tls.reload() {
                Ok(()) => info!("the certificate was read again"),
                Err(error) => error!(%error, "the certificate stays as it is"),
            }
        }
    }

    /// Takes no more calls from now on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the model goes by this name.
    pub(crate) fn is_model(&self, name: &str) -> bool {
        let Options { model_name, model_aliases, .. } = &self.options;
        name == model_name || name == ANY_MODEL || model_aliases.iter().any(|alias| alias == name)
    }

    /// Checks that a request names a model, which OpenAI's API requires.
    pub(crate) fn need_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        if asked.is_none() {
            let name = &self.options.model_name;
            return Err(ApiError::field("model", format!("this field is required: {name:?}, or any other")));
        }
        self.check_model(asked)
    }

    /// Checks the name of the model that a request is for, if the server is strict about names.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if self.options.strict_model && !self.is_model(asked) => Err(self.no_model(asked)),
            _ => Ok(()),
        }
    }

    /// A 404 for another model.
    pub(crate) fn no_model(&self, asked: &str) -> ApiError {
        let message = format!("there is no model {asked:?}, this server has {:?}", self.options.model_name);
        let error = ApiError::new(axum::http::StatusCode::NOT_FOUND, message);
        ApiError { param: Some("model".into()), ..error }.with_code("model_not_found")
    }

    /// Runs work that keeps a processor busy, such as encoding a prompt, off the threads that serve connections.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Model) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.compute_in(&self.cores, work).await
    }

    /// Runs work that keeps a processor busy once a permit of `places` is free.
    async fn compute_in<T: Send + 'static>(
        &self,
        places: &Arc<Semaphore>,
        work: impl FnOnce(&Model) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
        let model = Arc::clone(&self.options.model);
        let run = move || {
            // Work whose call was given up still takes its core.
            let _permit = permit;
            work(&model)
        };
        task::spawn_blocking(run).await.unwrap_or_else(|error| Err(ApiError::internal(error.to_string())))
    }

    /// The prompt of a conversation.
    pub(crate) async fn prompt(&self, conversation: Conversation) -> Result<Prompted, ApiError> {
        let encode = move |model: &Model| {
            let ids = model.conversation_ids(conversation)?;
            Ok(Prompted { thinks: model.begins_thought(&ids)?, ids })
        };
        self.compute(encode).await
    }

    /// The mask of an output, `None` if it is free.
    pub(crate) async fn mask(
        &self,
        format: Option<OutputFormat>,
    ) -> Result<Option<Box<dyn TokenMask>>, ApiError> {
        let Some(format) = format else { return Ok(None) };
        self.compute_in(&self.compiler, move |model| format.mask(model)).await.map(Some)
    }

    /// The mask and the parser of an answer to a prompt that offers `tools`. If the prompt begins a thought, the mask
    /// does not apply to the thought.
    pub(crate) async fn answer_form(
        &self,
        thinks: bool,
        tools: &Tools,
        format: Option<OutputFormat>,
    ) -> Result<(Option<Box<dyn TokenMask>>, AnswerParser), ApiError> {
        let calls = tools.calls().within(format.as_ref().map(|format| &format.form));
        let after_thought = |format: OutputFormat| match thinks {
            true => OutputFormat { form: Constraint::AfterThought(Box::new(format.form)), ..format },
            false => format,
        };
        Ok((self.mask(format.map(after_thought)).await?, AnswerParser::new(calls, thinks)))
    }

    /// Begins the `pagoda` object of a reply, before the engine starts on `prompts` with the given salt of the prefix
    /// cache. The place of a cache miss is given only for a single prompt.
    pub(crate) fn engine_use(&self, salt: Option<&str>, prompts: &[&[u32]]) -> EngineUse {
        let first_new: Vec<_> = prompts.iter().map(|ids| self.recent.first_new_token(ids, salt)).collect();
        let first_new = first_new.first().copied().flatten().filter(|_| prompts.len() == 1);
        EngineUse::new(first_new, self.blocks().block_size)
    }

    /// Number of tokens that can follow a prompt: as many as the context and the pool have room for, at least 1.
    pub(crate) fn room(&self, prompt_tokens: usize) -> u32 {
        // A sequence has the blocks of one engine, and any may get it.
        let tokens = |blocks: BlockView| u64::from(blocks.total) * u64::from(blocks.block_size);
        let pools = self.engines.engines().iter().map(|engine| tokens(engine.snapshot().blocks));
        let pool = pools.min().expect("at least one engine");
        let context = u64::from(self.options.context_length);
        let room = pool.min(context).saturating_sub(prompt_tokens as u64).max(1);
        u32::try_from(room).expect("a context length has 32 bits")
    }

    /// Deadline of a request that arrives now.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.options.request_timeout.map(|timeout| Instant::now() + timeout)
    }
}

/// Returns the number of waiting requests of an engine, and its state. The number includes requests that the engine
/// has not seen yet, and preempted sequences.
pub(crate) fn waiting(engine: &EngineHandle) -> (usize, Arc<Snapshot>) {
    // In this order: a request that starts in between is counted.
    let (waiting, snapshot) = (engine.num_waiting(), engine.snapshot());
    let preempted = snapshot.waiting.iter().filter(|view| view.activity == Activity::Preempted).count();
    (waiting + preempted, snapshot)
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
