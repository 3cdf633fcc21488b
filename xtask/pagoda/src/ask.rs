//! A conversation in, the text of an answer out.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream as _;
use models::Message;
use models::sampling::Sampling;

use crate::error::Error;
use crate::event::Event;
use crate::handle::{EngineHandle, Stream};
use crate::request::Request;

/// A conversation to be answered, and the way to answer it. A text alone is a message of a user.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Chat {
    /// Messages of the conversation, oldest first.
    pub messages: Vec<Message>,
    /// The way to answer: a request whose prompt is made of the messages.
    pub request: Request,
}

impl Chat {
    /// A conversation of these messages, to be answered as [`Request::new`] says.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, request: Request::new(Vec::new()) }
    }

    /// A conversation that begins with a message of the user.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(vec![Message::new("user", text)])
    }

    /// Puts a message of the system before all others.
    #[must_use]
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.messages.insert(0, Message::new("system", text));
        self
    }

    /// Goes on with the model's answer, and the next message of the user.
    #[must_use]
    pub fn then(mut self, answer: impl Into<String>, text: impl Into<String>) -> Self {
        self.messages.extend([Message::new("assistant", answer), Message::new("user", text)]);
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
}

impl<T: Into<String>> From<T> for Chat {
    fn from(text: T) -> Self {
        Self::user(text)
    }
}

impl EngineHandle {
    /// Has the model answer a conversation. The prompt is encoded before this returns, which takes some milliseconds; the answer
    /// is awaited or [waited for](Answer::wait) as a whole, or read [in pieces](Answer::stream). Errors are those of the
    /// answer.
    pub fn ask(&self, chat: impl Into<Chat>) -> Answer {
        let Chat { messages, mut request } = chat.into();
        let submit = |prompt| {
            request.prompt = prompt;
            self.submit(request)
        };
        let asked = self.model().chat_ids(&messages).and_then(submit);
        Answer { pieces: Pieces(asked.map_err(Some)), text: String::new() }
    }
}

/// The answer to a [`Chat`], a future of its text. Dropping it cancels the request.
#[derive(Debug)]
#[must_use = "dropping an answer cancels its request"]
pub struct Answer {
    pieces: Pieces,
    /// The text so far.
    text: String,
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
}

impl Future for Answer {
    type Output = Result<String, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { pieces, text } = &mut *self;
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

    /// The piece of an event, if it has one; ends after an error.
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
