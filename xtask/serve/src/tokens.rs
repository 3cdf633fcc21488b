//! Tokens without an answer: `/tokenize`, `/detokenize`, and the prompts that a call would run.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pagoda::Conversation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::error::ApiError;
use crate::fields::Reader;
use crate::openai::chat::Chat;
use crate::openai::completions::Completion;
use crate::openai::messages::ConversationFields;
use crate::prompt::{Prompts, Reading};
use crate::reply;
use crate::server::Server;

/// Fields of `/tokenize`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TokenizeFields {
    model: Option<String>,
    /// A text; without it, `messages` are converted.
    prompt: Option<String>,
    /// Add the special tokens that the tokenizer puts around a text.
    add_special_tokens: Option<bool>,
    /// Return the text of each token.
    return_token_strs: Option<bool>,
}

/// Types that together have all fields of the body of `/tokenize`.
pub(crate) type TokenizeBody = (TokenizeFields, ConversationFields);

/// Text or messages to convert to ids.
#[derive(Debug)]
struct Tokenize {
    model: Option<String>,
    with_texts: bool,
    input: Input,
}

#[derive(Debug)]
enum Input {
    Text { text: String, add_special: bool },
    Conversation(Box<Conversation>),
}

impl Tokenize {
    fn read(body: &[u8], reader: &mut Reader) -> Result<Self, ApiError> {
        let (fields, conversation): TokenizeBody = reader.body(body)?;
        let TokenizeFields { model, prompt, add_special_tokens, return_token_strs } = fields;
        let input = match prompt {
            Some(text) => Input::Text { text, add_special: add_special_tokens.unwrap_or(true) },
            None if add_special_tokens == Some(true) => {
                return Err(ApiError::field("add_special_tokens", "the chat template writes them"));
            }
            None => Input::Conversation(Box::new(conversation.check(reader)?)),
        };
        Ok(Self { model, with_texts: return_token_strs.unwrap_or(false), input })
    }
}

/// Ids of a text or a conversation.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Tokenized {
    count: usize,
    max_model_len: u32,
    tokens: Vec<u32>,
    /// Text of each token, if it was requested; null for one that has none.
    token_strs: Option<Vec<Option<String>>>,
}

/// `POST /tokenize`: the ids of a text or of a conversation.
pub(crate) async fn tokenize(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let Tokenize { model, with_texts, input } = Tokenize::read(&call.body, &mut server.reader())?;
    server.check_model(model.as_deref())?;
    let encode = move |model: &pagoda::Model| {
        let tokenizer = model.tokenizer()?;
        let ids = match input {
            Input::Text { text, add_special } => {
                tokenizer.encode(&text, add_special).map_err(pagoda::Error::from)?
            }
            Input::Conversation(talk) => model.conversation_ids(*talk)?,
        };
        let texts: Option<Vec<_>> = with_texts.then(|| ids.iter().map(|id| tokenizer.token(*id)).collect());
        Ok((ids, texts))
    };
    let (ids, texts) = server.compute(encode).await?;
    let max_model_len = server.options.context_length;
    Ok(reply::json(&Tokenized { count: ids.len(), max_model_len, tokens: ids, token_strs: texts }))
}

/// Ids to convert to a text.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Detokenize")]
pub(crate) struct DetokenizeFields {
    model: Option<String>,
    tokens: Vec<u32>,
    /// Leave special tokens out of the text.
    skip_special_tokens: Option<bool>,
}

/// The text of ids.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Detokenized {
    prompt: String,
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let (fields,): (DetokenizeFields,) = server.reader().body(&call.body)?;
    let DetokenizeFields { model, tokens: ids, skip_special_tokens } = fields;
    let skip_special = skip_special_tokens.unwrap_or(false);
    server.check_model(model.as_deref())?;
    let vocab = server.options.model.config.vocab_size;
    if let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| **id >= vocab) {
        let reason = format!("{id} is outside the vocabulary of {vocab}");
        return Err(ApiError::field(format!("tokens[{at}]"), reason));
    }
    let decode = move |model: &pagoda::Model| {
        Ok(model.tokenizer()?.decode(&ids, skip_special).map_err(pagoda::Error::from)?)
    };
    Ok(reply::json(&Detokenized { prompt: server.compute(decode).await? }))
}

/// `POST /v1/chat/completions/render`: the ids that a chat would run, as a body of `/inference/v1/generate`.
pub(crate) async fn render_chat(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let Chat { conversation, generation, max_tokens, .. } = Chat::read(&call.body, &mut server.reader())?;
    server.check_model(generation.model.as_deref())?;
    let ids = server.compute(move |model| Ok(model.conversation_ids(conversation)?)).await?;
    Ok(reply::json(&rendered(&server, &call, &ids, max_tokens)))
}

/// `POST /v1/completions/render`: the ids of each prompt of a completion, as bodies of `/inference/v1/generate`.
pub(crate) async fn render_completion(
    State(server): State<Arc<Server>>,
    call: Call,
) -> Result<Response, ApiError> {
    let Completion { prompts, reading, generation, max_tokens, .. } =
        Completion::read(&call.body, &mut server.reader())?;
    server.check_model(generation.model.as_deref())?;
    let reading = Reading { echo: false, ..reading };
    let prompts = server.compute(move |model| Prompts::read(prompts, model, reading)).await?;
    Ok(reply::json(
        &prompts.iter().map(|prompt| rendered(&server, &call, &prompt.ids, max_tokens)).collect::<Vec<_>>(),
    ))
}

/// A body of `/inference/v1/generate`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Rendered<'a> {
    request_id: &'a str,
    model: &'a str,
    token_ids: &'a [u32],
    sampling_params: RenderedParams,
}

#[derive(Serialize, JsonSchema)]
struct RenderedParams {
    max_tokens: Option<u32>,
}

fn rendered<'a>(
    server: &'a Server,
    call: &'a Call,
    token_ids: &'a [u32],
    max_tokens: Option<u32>,
) -> Rendered<'a> {
    Rendered {
        request_id: call.id.as_str(),
        model: &server.options.model_name,
        token_ids,
        sampling_params: RenderedParams { max_tokens },
    }
}
