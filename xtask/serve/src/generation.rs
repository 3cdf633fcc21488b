//! Fields that all calls which generate text have in common.

use std::collections::BTreeMap;

use pagoda::{Dry, LogitBias, Model, Penalties, Request, Sampling, TokenBias};
use serde::Deserialize;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::keys::Client;
use crate::server::Server;

/// Maximum number of stop texts.
const MAX_STOPS: usize = 64;

/// Maximum number of texts that end repetitions.
const MAX_BREAKERS: usize = 64;

/// Draws of the tokens of a call, and the form in which they are returned.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) model: Option<String>,
    pub(crate) sampling: Sampling,
    /// Seed that the call names.
    seed: Option<i64>,
    /// Texts that end repetitions of DRY, if it is on.
    dry_breakers: Option<Vec<String>>,
    pub(crate) samples: u32,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_eos: bool,
    pub(crate) skip_special: bool,
    pub(crate) salt: Option<String>,
    pub(crate) priority: i32,
    pub(crate) certify: bool,
    /// `None` for one reply with everything.
    pub(crate) stream: Option<StreamOptions>,
    /// Return the ids of prompt and output.
    pub(crate) return_ids: bool,
}

/// Options of a stream.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StreamOptions {
    /// End with a chunk that states the usage.
    pub(crate) include_usage: bool,
    /// State the usage so far in every chunk.
    pub(crate) continuous_usage_stats: bool,
    /// Padding against side channels, which this server does not add.
    include_obfuscation: bool,
}

/// One text or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a string or a list of strings")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Generation {
    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        // Who asks, and in which conversation: a single engine has nothing to choose by that.
        fields.skip(&["user", "safety_identifier", "session_id", "prompt_cache_key"]);
        let streams = fields.take("stream")?.unwrap_or(false);
        let options: Option<StreamOptions> = fields.take("stream_options")?;
        if options.is_some() && !streams {
            return Err(ApiError::field("stream_options", "only possible if stream is true"));
        }
        if options.is_some_and(|options| options.include_obfuscation) {
            return Err(ApiError::field("stream_options.include_obfuscation", "not supported"));
        }
        let dry = dry(fields)?;
        let dry_breakers = breakers(fields)?;
        Ok(Self {
            model: fields.take("model")?,
            dry_breakers: (!dry.is_off()).then_some(dry_breakers),
            sampling: sampling(fields)?.dry(dry),
            seed: fields.take("seed")?,
            samples: fields.count("n")?.unwrap_or(1),
            stop: stops(fields)?,
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
            skip_special: fields.take("skip_special_tokens")?.unwrap_or(true),
            salt: salt(fields)?,
            priority: fields.take("priority")?.unwrap_or(0),
            certify: fields.take("certify")?.unwrap_or(false),
            stream: streams.then(|| options.unwrap_or_default()),
            return_ids: fields.take("return_token_ids")?.unwrap_or(false),
        })
    }

    /// Returns the salt of the prefix cache for a call of `client`.
    pub(crate) fn salt_for(&self, client: &Client) -> Option<String> {
        client.salt(self.salt.as_deref())
    }

    /// Checks the name of the model, draws a seed if the call names none, and finds the tokens of DRY breakers.
    pub(crate) async fn settle(&mut self, server: &Server) -> Result<(), ApiError> {
        server.check_model(self.model.as_deref())?;
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

fn sampling(fields: &mut Fields<'_>) -> Result<Sampling, ApiError> {
    let top_k: i64 = fields.take("top_k")?.unwrap_or(0);
    // 0 and -1 both keep all, as in vLLM.
    let top_k = u32::try_from(top_k.max(0)).map_err(|_| ApiError::field("top_k", "at most 2^32 - 1"))?;
    let temperature = fields.take("temperature")?.unwrap_or(1.0);
    let (top_p, min_p) = (fields.take("top_p")?.unwrap_or(1.0), fields.take("min_p")?.unwrap_or(0.0));
    let repetition = fields.take("repetition_penalty")?.unwrap_or(1.0);
    let presence = fields.take("presence_penalty")?.unwrap_or(0.0);
    let frequency = fields.take("frequency_penalty")?.unwrap_or(0.0);
    let penalties = Penalties::OFF.repetition(repetition).presence(presence).frequency(frequency);
    Ok(Sampling::default()
        .temperature(temperature)
        .top_k(top_k)
        .top_p(top_p)
        .min_p(min_p)
        .penalties(penalties)
        .logit_bias(logit_bias(fields)?)
        .min_tokens(fields.take("min_tokens")?.unwrap_or(0))
        .stop_ids(fields.take("stop_token_ids")?.unwrap_or_default()))
}

/// DRY, with the names of llama.cpp's server.
fn dry(fields: &mut Fields<'_>) -> Result<Dry, ApiError> {
    let last: i64 = fields.take("dry_penalty_last_n")?.unwrap_or(-1);
    // -1 is all.
    let last = if last < 0 { u32::MAX } else { u32::try_from(last).unwrap_or(u32::MAX) };
    Ok(Dry::OFF
        .multiplier(fields.take("dry_multiplier")?.unwrap_or(Dry::OFF.multiplier))
        .base(fields.take("dry_base")?.unwrap_or(Dry::OFF.base))
        .allowed_length(fields.take("dry_allowed_length")?.unwrap_or(Dry::OFF.allowed_length))
        .last_tokens(last))
}

/// Texts that end repetitions. An empty one would be in every token.
fn breakers(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "dry_sequence_breakers";
    let texts: Option<Vec<String>> = fields.take(NAME)?;
    let texts = texts.unwrap_or_else(|| Dry::BREAKERS.map(str::to_owned).to_vec());
    if texts.len() > MAX_BREAKERS {
        return Err(ApiError::field(NAME, format!("{} texts, at most {MAX_BREAKERS}", texts.len())));
    }
    match texts.iter().position(String::is_empty) {
        Some(index) => Err(ApiError::field(format!("{NAME}[{index}]"), "the text is empty")),
        None => Ok(texts),
    }
}

fn logit_bias(fields: &mut Fields<'_>) -> Result<LogitBias, ApiError> {
    let entries: BTreeMap<String, f32> = fields.take("logit_bias")?.unwrap_or_default();
    let entry = |(id, bias): (&String, &f32)| match id.parse() {
        Ok(token) => Ok(TokenBias { token, bias: *bias }),
        Err(_) => Err(ApiError::field(format!("logit_bias.{id}"), "not the id of a token")),
    };
    Ok(LogitBias::new(entries.iter().map(entry).collect::<Result<Vec<_>, _>>()?))
}

/// Stop texts. An empty one would end every answer before it begins.
fn stops(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take("stop")? {
        None => Vec::new(),
        Some(Texts::One(text)) => vec![text],
        Some(Texts::Many(texts)) => texts,
    };
    if stops.len() > MAX_STOPS {
        return Err(ApiError::field("stop", format!("{} texts, at most {MAX_STOPS}", stops.len())));
    }
    match stops.iter().position(String::is_empty) {
        Some(index) => Err(ApiError::field(format!("stop[{index}]"), "the text is empty")),
        None => Ok(stops),
    }
}

/// The salt of the prefix cache; lengths as in vLLM.
fn salt(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let salt: Option<String> = fields.take("cache_salt")?;
    match salt {
        Some(salt) if salt.is_empty() || salt.len() > 1024 => {
            Err(ApiError::field("cache_salt", format!("{} bytes, must be 1 to 1024", salt.len())))
        }
        salt => Ok(salt),
    }
}
