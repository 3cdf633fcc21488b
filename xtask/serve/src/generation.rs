//! Fields that all calls which generate text have in common.

use std::collections::BTreeMap;

use pagoda::{Dry, LogitBias, Model, Penalties, Request, Sampling, TokenBias};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::ApiError;
use crate::fields::{Int, Reader, count};
use crate::hand_over::TransferParams;
use crate::keys::Client;
use crate::server::Server;

/// Maximum number of stop texts.
const MAX_STOPS: usize = 64;

/// Maximum number of texts that end repetitions.
const MAX_BREAKERS: usize = 64;

/// Sampling of tokens, and the form in which they are returned.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Generation")]
pub(crate) struct GenerationFields {
    /// Name of the model. Any name is answered by the model that the server has, unless it is strict about names.
    model: Option<String>,
    /// Send the answer in pieces, as server-sent events.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Number of answers to each prompt, which share its KV blocks.
    #[schemars(range(min = 1))]
    n: Option<Int<u32>>,
    /// Sampling temperature; 0 takes the likeliest token. Without it, as for the other sampling parameters, what the
    /// model recommends, else 0.7.
    #[schemars(range(min = 0.0))]
    temperature: Option<f32>,
    /// Draw from the likeliest tokens only; 0 and -1 keep all.
    top_k: Option<Int<i64>>,
    /// Draw from the likeliest tokens whose probabilities sum to this; 0.95 without it and a recommendation.
    #[schemars(range(min = 0.0, max = 1.0))]
    top_p: Option<f32>,
    /// Draw only from tokens whose probability is at least this share of the likeliest token's.
    #[schemars(range(min = 0.0, max = 1.0))]
    min_p: Option<f32>,
    /// Divisor of the logits of tokens that prompt or answer contain; 1 is off.
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<f32>,
    /// Number subtracted from the logits of tokens that the answer contains.
    presence_penalty: Option<f32>,
    /// Number subtracted from the logit of a token for each time that the answer contains it.
    frequency_penalty: Option<f32>,
    /// DRY: weight of the penalty on tokens that would continue a repetition; 0 is off.
    dry_multiplier: Option<f32>,
    /// DRY: base of the penalty, whose exponent is the length of the repetition.
    dry_base: Option<f32>,
    /// DRY: length of repetitions that cost nothing.
    dry_allowed_length: Option<Int<u32>>,
    /// DRY: number of last tokens among which repetitions are looked for; -1 is all.
    dry_penalty_last_n: Option<Int<i64>>,
    /// DRY: texts that end repetitions.
    dry_sequence_breakers: Option<Vec<String>>,
    /// Numbers added to the logits of tokens, by id.
    logit_bias: Option<BTreeMap<String, f32>>,
    /// Seed of the draws: equal calls with equal seeds draw equal tokens.
    seed: Option<Int<i64>>,
    /// Minimum number of tokens before the answer may end.
    min_tokens: Option<Int<u32>>,
    /// Texts that end the answer, and are no part of it.
    stop: Option<Texts>,
    /// Tokens that end the answer.
    stop_token_ids: Option<Vec<u32>>,
    /// Continue past the end of sequence.
    ignore_eos: Option<bool>,
    /// Leave special tokens out of the text.
    skip_special_tokens: Option<bool>,
    /// Salt that separates entries of the prefix cache: only calls with the same salt share them. 1 to 1024 bytes.
    cache_salt: Option<String>,
    /// Priority of the request: lower values run first, if the server orders requests by priority.
    priority: Option<Int<i32>>,
    /// Certify the attention mass that the sparse policy keeps.
    certify: Option<bool>,
    /// Return the ids of prompt and answer.
    return_token_ids: Option<bool>,
    /// The part of the call in a prefill by one server and a decode by another.
    kv_transfer_params: Option<TransferParams>,
}

/// Options of a stream.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
pub(crate) struct StreamOptions {
    /// End with a chunk that states the usage.
    pub(crate) include_usage: Option<bool>,
    /// State the usage so far in every chunk.
    pub(crate) continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    pub(crate) fn ends_with_usage(self) -> bool {
        self.include_usage.unwrap_or(false)
    }

    pub(crate) fn states_usage(self) -> bool {
        self.continuous_usage_stats.unwrap_or(false)
    }
}

/// One text or several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be a string or a list of strings")]
pub(crate) enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// Sampling of the tokens of a call, and the form in which they are returned.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) model: Option<String>,
    pub(crate) sampling: Sampling,
    /// Seed in the call; without one, the server draws a seed.
    seed: Option<i64>,
    /// Texts that end repetitions for the DRY penalty; `None` if DRY is off.
    dry_breakers: Option<Vec<String>>,
    pub(crate) samples: u32,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_eos: bool,
    pub(crate) skip_special: bool,
    pub(crate) salt: Option<String>,
    pub(crate) priority: i32,
    pub(crate) certify: bool,
    /// Options of a streamed answer; `None` for one reply with everything.
    pub(crate) stream: Option<StreamOptions>,
    /// Whether to return the ids of prompt and output.
    pub(crate) return_ids: bool,
    transfer: Option<TransferParams>,
    /// Whether another server continues with the prompts, so that the reply waits until their blocks are stored.
    pub(crate) hands_over: bool,
}

impl GenerationFields {
    /// Checks the fields.
    pub(crate) fn check(self, reader: &mut Reader) -> Result<Generation, ApiError> {
        let streams = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !streams {
            reader.ignore("stream_options")?;
        }
        let dry = self.dry();
        let dry_is_on = !dry.is_off();
        Ok(Generation {
            sampling: self.sampling(&reader.defaults)?.dry(dry),
            dry_breakers: Some(breakers(self.dry_sequence_breakers)?).filter(|_| dry_is_on),
            seed: self.seed.map(|Int(seed)| seed),
            samples: count("n", self.n)?.unwrap_or(1),
            stop: stops(self.stop)?,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            skip_special: self.skip_special_tokens.unwrap_or(true),
            salt: salt(self.cache_salt)?,
            priority: self.priority.map_or(0, |Int(priority)| priority),
            certify: self.certify.unwrap_or(false),
            stream: streams.then(|| self.stream_options.unwrap_or_default()),
            return_ids: self.return_token_ids.unwrap_or(false),
            transfer: self.kv_transfer_params,
            hands_over: false,
            model: self.model,
        })
    }

    /// The sampling parameters. Those that the call does not state are `defaults`.
    fn sampling(&self, defaults: &Sampling) -> Result<Sampling, ApiError> {
        // 0 and -1 both keep all, as in vLLM.
        let top_k = self.top_k.map_or(defaults.top_k.into(), |Int(top_k)| top_k.max(0));
        let top_k = u32::try_from(top_k).map_err(|_| ApiError::field("top_k", "at most 2^32 - 1"))?;
        let penalties = Penalties::OFF
            .repetition(self.repetition_penalty.unwrap_or(defaults.penalties.repetition))
            .presence(self.presence_penalty.unwrap_or(defaults.penalties.presence))
            .frequency(self.frequency_penalty.unwrap_or(defaults.penalties.frequency));
        Ok(Sampling::default()
            .temperature(self.temperature.unwrap_or(defaults.temperature))
            .top_k(top_k)
            .top_p(self.top_p.unwrap_or(defaults.top_p))
            .min_p(self.min_p.unwrap_or(defaults.min_p))
            .penalties(penalties)
            .logit_bias(self.logit_bias()?)
            .min_tokens(self.min_tokens.map_or(0, |Int(tokens)| tokens))
            .stop_ids(self.stop_token_ids.clone().unwrap_or_default()))
    }

    /// Parameters of the DRY penalty. Their fields have the names of llama.cpp's server.
    fn dry(&self) -> Dry {
        // -1 is all.
        let last = self.dry_penalty_last_n.and_then(|Int(last)| u32::try_from(last).ok()).unwrap_or(u32::MAX);
        Dry::OFF
            .multiplier(self.dry_multiplier.unwrap_or(Dry::OFF.multiplier))
            .base(self.dry_base.unwrap_or(Dry::OFF.base))
            .allowed_length(self.dry_allowed_length.map_or(Dry::OFF.allowed_length, |Int(length)| length))
            .last_tokens(last)
    }

    fn logit_bias(&self) -> Result<LogitBias, ApiError> {
        let entry = |(id, bias): (&String, &f32)| match id.parse() {
            Ok(token) => Ok(TokenBias { token, bias: *bias }),
            Err(_) => Err(ApiError::field(format!("logit_bias.{id}"), "not the id of a token")),
        };
        let entries = self.logit_bias.iter().flatten().map(entry).collect::<Result<Vec<_>, _>>()?;
        Ok(LogitBias::new(entries))
    }
}

impl Generation {
    /// Returns the salt of the prefix cache for a call of `client`.
    pub(crate) fn salt_for(&self, client: &Client) -> Option<String> {
        client.salt(self.salt.as_deref())
    }

    /// Checks the name of the model, draws a seed if the call names none, finds the tokens of DRY breakers, and takes part in a
    /// hand-over to another server.
    pub(crate) async fn settle(&mut self, server: &Server, reader: &mut Reader) -> Result<(), ApiError> {
        server.check_model(self.model.as_deref())?;
        if let Some(params) = self.transfer {
            self.hands_over = params.check(server, reader)?;
        }
        if self.hands_over && self.stream.is_some() {
            let reason = "a stream has no end that could return parameters: leave out stream";
            return Err(ApiError::field("kv_transfer_params.do_remote_decode", reason));
        }
        self.sampling.seed = self.seed.map_or_else(|| server.seed(), i64::cast_unsigned);
        let Some(texts) = self.dry_breakers.take().filter(|_| server.options.model.tokenizer.is_some())
        else {
            return Ok(());
        };
        let tokens = move |model: &Model| Ok(model.tokens_with(&texts)?);
        self.sampling.dry.breakers = server.compute(tokens).await?.into_iter().collect();
        Ok(())
    }

    /// The request for one prompt.
    pub(crate) fn request(&self, server: &Server, prompt: Vec<u32>, max_tokens: Option<u32>) -> Request {
        let max_tokens = max_tokens.unwrap_or_else(|| server.room(prompt.len()));
        let mut request = Request::new(prompt).max_tokens(max_tokens).samples(self.samples);
        request.sampling = self.sampling.clone();
        request.stop.clone_from(&self.stop);
        request.ignore_eos = self.ignore_eos;
        request.skip_special = self.skip_special;
        request.text = server.options.model.tokenizer.is_some();
        request.salt.clone_from(&self.salt);
        request.priority = self.priority;
        request.certify = self.certify;
        request.deadline = server.deadline();
        request
    }
}

/// Checks the texts that end repetitions. An empty text is refused, because it would be in every token.
fn breakers(texts: Option<Vec<String>>) -> Result<Vec<String>, ApiError> {
    let texts = texts.unwrap_or_else(|| Dry::BREAKERS.map(str::to_owned).to_vec());
    checked("dry_sequence_breakers", texts, MAX_BREAKERS)
}

/// Checks the stop texts. An empty text is refused, because it would end every answer before it begins.
fn stops(stops: Option<Texts>) -> Result<Vec<String>, ApiError> {
    checked("stop", stops.map_or_else(Vec::new, Texts::into_vec), MAX_STOPS)
}

/// Refuses empty texts, and more than `max`.
fn checked(name: &str, texts: Vec<String>, max: usize) -> Result<Vec<String>, ApiError> {
    if texts.len() > max {
        return Err(ApiError::field(name, format!("{} texts, at most {max}", texts.len())));
    }
    match texts.iter().position(String::is_empty) {
        Some(index) => Err(ApiError::field(format!("{name}[{index}]"), "the text is empty")),
        None => Ok(texts),
    }
}

/// Checks the salt of the prefix cache. Its minimum and maximum length are those of vLLM.
pub(crate) fn salt(salt: Option<String>) -> Result<Option<String>, ApiError> {
    match salt {
        Some(salt) if salt.is_empty() || salt.len() > 1024 => {
            Err(ApiError::field("cache_salt", format!("{} bytes, must be 1 to 1024", salt.len())))
        }
        salt => Ok(salt),
    }
}
