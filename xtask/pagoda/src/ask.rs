//! A conversation in, the text of an answer out.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use derive_setters::Setters;
use futures_core::Stream as _;
use models::sampling::Sampling;
use models::{Conversation, Message};
use serde_json::{Value, json};

use crate::error::Error;
use crate::event::Event;
#[cfg(feature = "grammar")]
use crate::grammar::Constraint;
use crate::handle::{EngineHandle, Stream};
use crate::model::Model;
use crate::request::Request;
#[cfg(feature = "tools")]
use crate::tools::{AnswerParser, ParsedAnswer, ToolCall, Tools};

/// A conversation to be answered, and the way to answer it. A plain text converts to a conversation with one message
/// of the user.
#[derive(Debug, Clone, Setters)]
#[non_exhaustive]
pub struct Chat {
    /// The conversation, oldest message first.
    #[setters(skip)]
    pub conversation: Conversation,
    /// The way to answer: a request whose prompt is made of the conversation.
    #[setters(skip)]
    pub request: Request,
    /// Form of the answer after any thought that the prompt begins; `None` for any form. A forced tool call has the
    /// form of a call. With optional tools, the answer is an instance of a schema, or calls.
    #[cfg(feature = "grammar")]
    #[setters(strip_option)]
    pub form: Option<Constraint>,
    /// Tools that the answer may call.
    #[cfg(feature = "tools")]
    pub tools: Tools,
}

impl Chat {
    /// A conversation of these messages, to be answered as [`Request::new`] says.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> Self {
        Self::of(Conversation { messages: messages.iter().map(to_json).collect(), ..Conversation::default() })
    }

    /// A conversation that may have documents, or messages with further fields, to be answered as [`Request::new`] says.
    #[must_use]
    pub fn of(conversation: Conversation) -> Self {
        Self {
            conversation,
            request: Request::new(Vec::new()),
            #[cfg(feature = "grammar")]
            form: None,
            #[cfg(feature = "tools")]
            tools: Tools::default(),
        }
    }

    /// A conversation that begins with a message of the user.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(vec![Message::new("user", text)])
    }

    /// Puts a message of the system before all others.
    #[must_use]
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.conversation.messages.insert(0, to_json(&Message::new("system", text)));
        self
    }

    /// Appends the model's answer and the next message of the user.
    #[must_use]
    pub fn then(mut self, answer: impl Into<String>, text: impl Into<String>) -> Self {
        let messages = [Message::new("assistant", answer), Message::new("user", text)];
        self.conversation.messages.extend(messages.iter().map(to_json));
        self
    }

    /// Sets the maximum number of tokens of the answer.
    #[must_use]
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.request.max_tokens = tokens;
        self
    }

    /// Sets the sampling of tokens.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.request.sampling = sampling;
        self
    }

    /// Appends the tool calls of the model's answer, each with its result.
    #[cfg(feature = "tools")]
    #[must_use]
    pub fn called<R: Into<String>>(mut self, calls: impl IntoIterator<Item = (ToolCall, R)>) -> Self {
        let (calls, results): (Vec<_>, Vec<_>) =
            calls.into_iter().map(|(call, result)| (call.for_template(), result.into())).unzip();
        let names: Vec<_> = calls.iter().map(|call| call["function"]["name"].clone()).collect();
        let messages = &mut self.conversation.messages;
        messages.push(json!({ "role": "assistant", "content": "", "tool_calls": calls }));
        messages.extend(
            names
                .iter()
                .zip(results)
                .map(|(name, text)| json!({ "role": "tool", "name": name, "content": text })),
        );
        self
    }
}

/// A message in the form that chat templates take.
fn to_json(message: &Message) -> Value {
    json!({ "role": message.role, "content": message.content })
}

impl<T: Into<String>> From<T> for Chat {
    fn from(text: T) -> Self {
        Self::user(text)
    }
}

impl EngineHandle {
    /// Lets the model answer a conversation. The prompt is encoded, and a [form](Chat::form) compiled, before this
    /// returns; each takes some milliseconds in most cases. The answer is awaited or [waited for](Answer::wait) as a
    /// whole, or read [in pieces](Answer::stream). All errors come from the answer.
    pub fn ask(&self, chat: impl Into<Chat>) -> Answer {
        let prepared = chat.into().prepare(self.model());
        #[cfg(feature = "tools")]
        let (prepared, parser) = match prepared {
            Ok((request, parser)) => (Ok(request), parser),
            Err(error) => (Err(error), AnswerParser::default()),
        };
        let asked = prepared.and_then(|request| self.submit(request));
        Answer {
            pieces: Pieces(asked.map_err(Some)),
            text: String::new(),
            #[cfg(feature = "tools")]
            parser,
        }
    }
}

impl Chat {
    /// Makes the request that generates the answer.
    #[cfg(not(feature = "tools"))]
    fn prepare(self, model: &Model) -> Result<Request, Error> {
        let mut request = self.request;
        request.prompt = model.conversation_ids(self.conversation)?;
        #[cfg(feature = "grammar")]
        if let Some(form) = &self.form {
            request.mask = Some(model.mask(form)?);
        }
        Ok(request)
    }

    /// The request for the answer, and the parser of the answer's text.
    #[cfg(feature = "tools")]
    fn prepare(self, model: &Model) -> Result<(Request, AnswerParser), Error> {
        let Self { mut conversation, mut request, form, tools } = self;
        if let Some(list) = tools.for_template() {
            conversation.tools = Some(list);
        }
        request.prompt = model.conversation_ids(conversation)?;
        let thinks = model.begins_thought(&request.prompt)?;
        let form = tools.form(form);
        let calls = tools.calls().within(form.as_ref());
        if let Some(form) = form {
            let form = if thinks { Constraint::AfterThought(Box::new(form)) } else { form };
            request.mask = Some(model.mask(&form)?);
        }
        request.stop.extend(tools.stop().map(str::to_owned));
        let parser = AnswerParser::new(calls, thinks);
        Ok((request, parser))
    }
}

/// The answer to a [`Chat`], a future of its text. Dropping it cancels the request.
#[derive(Debug)]
#[must_use = "dropping an answer cancels its request"]
pub struct Answer {
    pieces: Pieces,
    /// The text so far.
    text: String,
    /// Parser that divides the text into thoughts, text and calls of tools.
    #[cfg(feature = "tools")]
    parser: AnswerParser,
}

impl Answer {
    /// Waits for the whole text.
    ///
    /// # Errors
    /// Why the chat was refused, or the answer did not come to its end.
    pub fn wait(self) -> Result<String, Error> {
        self.stream().blocking().collect()
    }

    /// The answer piece by piece, as it is generated.
    pub fn stream(self) -> Pieces {
        self.pieces
    }

    /// Returns the parser of the text, for those who read the answer [in pieces](Self::stream).
    #[cfg(feature = "tools")]
    #[must_use]
    pub fn parser(&self) -> AnswerParser {
        self.parser.clone()
    }

    /// The whole answer, taken apart into thoughts, text and calls of tools.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    #[cfg(feature = "tools")]
    pub async fn parsed(self) -> Result<ParsedAnswer, Error> {
        let parser = self.parser();
        Ok(parser.parse(&self.await?))
    }

    /// Waits for the whole answer, and takes it apart into thoughts, text and calls of tools.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    #[cfg(feature = "tools")]
    pub fn wait_parsed(self) -> Result<ParsedAnswer, Error> {
        let parser = self.parser();
        Ok(parser.parse(&self.wait()?))
    }
}

impl Future for Answer {
    type Output = Result<String, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { pieces, text, .. } = &mut *self;
        while let Some(piece) = ready!(Pin::new(&mut *pieces).poll_next(context)) {
            text.push_str(&piece?);
        }
        Poll::Ready(Ok(std::mem::take(text)))
    }
}

/// The pieces of an [`Answer`]: a [`futures_core::Stream`] of texts, which end after an error. Dropping it cancels the request.
///
/// Blocking code takes it [as an iterator](Self::blocking).
#[derive(Debug)]
#[must_use = "dropping the pieces of an answer cancels its request"]
pub struct Pieces(Result<Stream, Option<Error>>);

impl Pieces {
    /// The pieces as an iterator, which waits for each.
    pub fn blocking(self) -> BlockingPieces {
        BlockingPieces(self)
    }

    /// Text of an event, if the event has any. After an error, the stream ends.
    fn take(&mut self, event: Result<Event, Error>) -> Option<Result<String, Error>> {
        let piece = event.and_then(text);
        if piece.is_err() {
            self.0 = Err(None);
        }
        Some(piece).filter(|piece| !matches!(piece, Ok(text) if text.is_empty()))
    }
}

/// The text of an event.
fn text(event: Event) -> Result<String, Error> {
    match event {
        Event::Token(token) => Ok(token.text),
        Event::Finished(end) if end.reason.is_failure() => {
            Err(Error::Unanswered { id: end.id, reason: end.reason })
        }
        Event::Finished(end) => Ok(end.text),
        Event::Started(_) | Event::Prompt(_) => Ok(String::new()),
    }
}

impl futures_core::Stream for Pieces {
    type Item = Result<String, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let event = match &mut self.0 {
                Ok(stream) => ready!(Pin::new(stream).poll_next(context)),
                Err(error) => return Poll::Ready(error.take().map(Err)),
            };
            let Some(event) = event else { return Poll::Ready(None) };
            if let Some(piece) = self.take(event) {
                return Poll::Ready(Some(piece));
            }
        }
    }
}

/// The pieces of an [`Answer`] for blocking code: an iterator that waits for each. Dropping it cancels the request.
#[derive(Debug)]
pub struct BlockingPieces(Pieces);

impl Iterator for BlockingPieces {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let event = match &mut self.0.0 {
                Ok(stream) => stream.wait()?,
                Err(error) => return error.take().map(Err),
            };
            if let Some(piece) = self.0.take(event) {
                return Some(piece);
            }
        }
    }
}
