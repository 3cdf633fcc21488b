//! Chat templates: Jinja programs in checkpoints, with the semantics of Hugging Face.

mod bounded;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::{
    Environment, Error, ErrorKind, Value, context,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde},
};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::{Gguf, GgufError, Tokenizer};

const NAME: &str = "chat_template";

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role that the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }

    /// Returns the message as untrusted text: control tokens spelled out in it [stay text](Tokenizer::as_text) when the rendered
    /// conversation is encoded.
    #[must_use]
    pub fn as_text(&self, tokenizer: &Tokenizer) -> Self {
        Self::new(tokenizer.as_text(&self.role), tokenizer.as_text(&self.content))
    }
}

/// Everything that a template sees of a conversation, in its Python form; messages may have any fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Objects with `role` and `content`, and other fields that the template knows, such as `tool_calls`.
    pub messages: Vec<Json>,
    /// Tools that the answer may call; `None` if there are none.
    pub tools: Option<Json>,
    /// Documents that the answer may cite; `None` if there are none.
    pub documents: Option<Json>,
    /// Variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Json>,
    /// Whether the last message is to be continued, instead of starting a new one.
    pub continues: bool,
}

impl Conversation {
    /// Returns the conversation as untrusted text: control tokens spelled out in any of its texts [stay text](Tokenizer::as_text)
    /// when it is rendered and encoded.
    #[must_use]
    pub fn as_text(mut self, tokenizer: &Tokenizer) -> Self {
        let parts = self.messages.iter_mut().chain(&mut self.tools).chain(&mut self.documents);
        parts.chain(self.variables.values_mut()).for_each(|part| break_texts(part, tokenizer));
        self
    }
}

fn break_texts(value: &mut Json, tokenizer: &Tokenizer) {
    match value {
        Json::String(text) => {
            if let Cow::Owned(broken) = tokenizer.as_text(text) {
                *text = broken;
            }
        }
        Json::Array(parts) => parts.iter_mut().for_each(|part| break_texts(part, tokenizer)),
        Json::Object(fields) => {
            let broken = |name: &String| matches!(tokenizer.as_text(name), Cow::Owned(_));
            if fields.keys().any(broken) {
                let named = std::mem::take(fields).into_iter();
                *fields = named.map(|(name, part)| (tokenizer.as_text(&name).into_owned(), part)).collect();
            }
            fields.values_mut().for_each(|part| break_texts(part, tokenizer));
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// A compiled chat template and the tokens that it refers to.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
    syntax: SyntaxConfig,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`ChatError::Template`] with the line of a syntax error.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, ChatError> {
        let template = |source| ChatError::Template { source };
        let mut environment = Environment::new();
        let syntax =
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(template)?;
        environment.set_syntax(syntax.clone());
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        bounded::compile((NAME, source), &syntax).map_err(template)?;
        let (environment, source) = (Arc::new(environment), Arc::from(source));
        Ok(Self {
            environment,
            source,
            syntax,
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
        })
    }

    /// Returns the template in the metadata of `file`, if there is one.
    ///
    /// # Errors
    /// [`ChatError::Gguf`] and [`ChatError::Template`].
    pub fn from_gguf(file: &Gguf) -> Result<Option<Self>, ChatError> {
        let Some(source) = file.str("tokenizer.chat_template")? else { return Ok(None) };
        let tokens = file.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
        let token = |key| -> Result<&str, GgufError> {
            let id = file.u32(key)?.map(|id| id as usize);
            Ok(id.and_then(|id| tokens.get(id)).map_or("", String::as_str))
        };
        let (bos, eos) = (token("tokenizer.ggml.bos_token_id")?, token("tokenizer.ggml.eos_token_id")?);
        Self::new(source, bos, eos).map(Some)
    }

    /// Reads the template of a Hugging Face directory: `chat_template.jinja`, or `chat_template` in `tokenizer_config.json` (the
    /// one named `default` if there are several).
    ///
    /// # Errors
    /// Any [`ChatError`] except `Gguf` and `Render`.
    pub fn from_hf_dir(dir: impl AsRef<Path>) -> Result<Option<Self>, ChatError> {
        let config_path = dir.as_ref().join("tokenizer_config.json");
        let config = match read_if_there(&config_path)? {
            Some(text) => serde_json::from_str(&text)
                .map_err(|source| ChatError::Config { path: config_path, source })?,
            None => TokenizerConfig::default(),
        };
        let source = match (read_if_there(&dir.as_ref().join("chat_template.jinja"))?, config.chat_template) {
            (Some(file), _) => Some(file),
            (None, Some(Templates::One(source))) => Some(source),
            (None, Some(Templates::Named(list))) => {
                list.into_iter().find(|entry| entry.name == "default").map(|entry| entry.template)
            }
            (None, None) => None,
        };
        let text = |token: Option<TokenText>| token.map_or_else(String::new, TokenText::into_text);
        let (bos, eos) = (text(config.bos_token), text(config.eos_token));
        source.map(|source| Self::new(&source, &bos, &eos)).transpose()
    }

    /// Returns the prompt for a conversation; with `add_generation_prompt` it ends where the answer starts.
    ///
    /// # Errors
    /// [`ChatError::Render`], which also carries what the template itself objects to.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        self.render_with(context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt,
            // Templates ask whether these are none, not whether they are defined.
            tools => (),
            documents => (),
        })
    }

    /// Returns the prompt for a conversation. It ends where the answer starts, or in the last message if that
    /// [continues](Conversation::continues).
    ///
    /// # Errors
    /// [`ChatError::Render`] as in [`render`](Self::render), and [`ChatError::NothingToContinue`].
    pub fn render_conversation(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let Conversation { messages, tools, documents, variables, continues } = conversation;
        let text = self.render_with(context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => !continues,
            tools => tools.as_ref().map(|tools| Value::from(Serde(tools))),
            documents => documents.as_ref().map(|documents| Value::from(Serde(documents))),
            ..Value::from(Serde(variables)),
        })?;
        if !continues {
            return Ok(text);
        }
        let last = messages.last().and_then(|message| message["content"].as_str()).map(str::trim_end);
        let end = last.filter(|last| !last.is_empty()).and_then(|last| Some(text.rfind(last)? + last.len()));
        Ok(text[..end.ok_or(ChatError::NothingToContinue)?].to_owned())
    }

    fn render_with(&self, variables: Value) -> Result<String, ChatError> {
        let context = context! { bos_token => &self.bos_token, eos_token => &self.eos_token, ..variables };
        let rendered = bounded::render(&self.environment, (NAME, &self.source), &self.syntax, context);
        rendered.map_err(|source| ChatError::Render { source })
    }
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Formats the local time like C's `strftime`.
fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// Writes JSON like Python's `json.dumps`, but leaves characters of other scripts unescaped. Jinja's own filter would
/// escape for HTML.
fn write_json(value: &Value, options: &Kwargs, out: &mut impl std::io::Write) -> Result<(), Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let result = match indent {
        Some(width) => {
            let indent = vec![b' '; width.min(64)];
            let pretty = serde_json::ser::PrettyFormatter::with_indent(&indent);
            value.serialize(&mut serde_json::Serializer::with_formatter(out, pretty))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(out, PythonCompact)),
    };
    result.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// Formats JSON on one line with a space after each comma and colon, like Python.
struct PythonCompact;

impl serde_json::ser::Formatter for PythonCompact {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

#[derive(Default, serde::Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(serde::Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Token { content: String },
}

impl TokenText {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Token { content: text } => text,
        }
    }
}

fn read_if_there(path: &Path) -> Result<Option<String>, ChatError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChatError::Io { path: path.into(), source }),
    }
}

/// Error of loading or rendering a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The file system refused.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// `tokenizer_config.json` is not valid.
    #[error("{path} is not a tokenizer configuration: {source}", path = path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: serde_json::Error,
    },
    /// GGUF metadata is of the wrong type.
    #[error(transparent)]
    Gguf {
        /// The defect.
        #[from]
        source: GgufError,
    },
    /// The template does not compile.
    #[error("the chat template does not compile: {source}")]
    Template {
        /// The defect.
        source: Error,
    },
    /// The last message of a conversation to be continued has no text in the prompt.
    #[error("the text of the last message is not in the prompt, so it cannot be continued")]
    NothingToContinue,
    /// The template does not accept these messages.
    #[error("the chat template cannot render the messages: {source}")]
    Render {
        /// The reason.
        source: Error,
    },
}
