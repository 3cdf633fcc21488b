//! Answers as they grow: one accumulator for all APIs, each of which writes them in its own form.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use pagoda::tools::{AnswerParser, AnswerPart, add};
use pagoda::{Event, FinishReason, LogProbs, Request, Saves};
use serde::Serialize;

use crate::call::Call;
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::generation::Generation;
use crate::hand_over::{Transferred, transferred};
use crate::record::Record;
use crate::reply::with_ignored;
use crate::running::Running;
use crate::server::{Server, unix_seconds};

/// Header that tells nginx not to buffer events.
const UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The work of the engine for a call.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) generation: Generation,
    /// Requests, one for each prompt.
    pub(crate) requests: Vec<Request>,
    /// The field of the prompts, which errors about prompts name.
    pub(crate) input: &'static str,
    /// Parser that divides the texts into thoughts, text and calls of tools; without it, they are returned unchanged.
    pub(crate) answer: Option<AnswerParser>,
    /// Fields of the call that change nothing.
    pub(crate) ignored: Vec<String>,
}

/// The answers of a call, up to now. An answer is one sample of one prompt.
#[derive(Debug)]
pub(crate) struct Answering {
    pub(crate) server: Arc<Server>,
    /// Time at which the server accepted the call, in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) usage: Usage,
    record: Record,
    pub(crate) engine: EngineUse,
    /// Log-probabilities of the tokens of each prompt, from its second token on; empty if the call does not request them.
    pub(crate) prompt_log_probs: Vec<Vec<LogProbs>>,
    /// Saves of the blocks from which another server continues.
    saves: Vec<Saves>,
    /// Parameters for the server that continues; set once the saves have ended.
    pub(crate) transferred: Option<Transferred>,
    /// Number of answers to each prompt.
    pub(crate) samples: usize,
    /// Answers so far, `[prompts * samples]`.
    answers: Vec<Growing>,
}

/// One answer, up to now.
#[derive(Debug)]
struct Growing {
    answer: Option<AnswerParser>,
    has_begun: bool,
    end: Option<End>,
    /// Addition to the answer that was not sent yet.
    delta: Delta,
}

/// An addition to an answer.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// Index of the answer among those of the call: `prompt * samples + sample`.
    pub(crate) index: usize,
    /// Whether this is the first addition.
    pub(crate) begins: bool,
    pub(crate) pieces: Vec<AnswerPart>,
    pub(crate) ids: Vec<u32>,
    pub(crate) log_probs: Vec<LogProbs>,
    /// End of the answer; set in its last addition.
    pub(crate) end: Option<End>,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) reason: FinishReason,
    /// Whether the answer called a tool.
    pub(crate) has_called: bool,
}

/// Tokens that a call used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    /// Number of prompt tokens that were not computed.
    pub(crate) cached_tokens: u64,
    pub(crate) output_tokens: u64,
    /// Number of output tokens within thoughts.
    pub(crate) reasoning_tokens: u64,
}

/// Writes answers in the form of an API.
pub(crate) trait Render: Send + Unpin + 'static {
    /// Begins a stream, once the engine has started on the call.
    fn begin(&mut self, _: &Answering, _: &mut Out) {}

    /// Whether an addition is worth an event of a stream.
    fn is_due(&self, delta: &Delta) -> bool {
        !delta.pieces.is_empty() || delta.end.is_some()
    }

    /// Writes an addition to an answer as events of a stream.
    fn grow(&mut self, answering: &Answering, delta: Delta, out: &mut Out);

    /// Ends a stream that went well.
    fn end(&mut self, answering: &Answering, out: &mut Out);

    /// Ends a stream that failed.
    fn fail(&mut self, answering: &Answering, error: &ApiError, out: &mut Out);

    /// Returns all answers in one reply. Each of `deltas` holds a whole answer.
    fn whole(&mut self, answering: &Answering, deltas: Vec<Delta>) -> Response;
}

/// Has the engine answer a call, and returns the reply that `render` writes.
pub(crate) async fn respond<R: Render>(
    server: &Arc<Server>,
    call: Call,
    job: Job,
    mut render: R,
) -> Result<Response, ApiError> {
    let Job { generation, requests, input, answer, ignored } = job;
    let prompts: Vec<&[u32]> = requests.iter().map(|request| request.prompt.as_slice()).collect();
    let samples = generation.samples as usize;
    let mut answering = Answering {
        server: Arc::clone(server),
        created: unix_seconds(),
        usage: Usage {
            prompt_tokens: prompts.iter().map(|prompt| prompt.len() as u64).sum(),
            ..Usage::default()
        },
        record: call.record.clone(),
        engine: server.engine_use(generation.salt_for(&call.client).as_deref(), &prompts),
        prompt_log_probs: vec![Vec::new(); prompts.len()],
        saves: Vec::new(),
        transferred: None,
        samples,
        answers: Vec::new(),
    };
    answering.engine.warn(&ignored);
    let count = prompts.len() * samples;
    let mut running = Running::start(server, requests, call, input).await?;
    // Room for the answers is made once the engine has taken as many.
    answering.answers.extend((0..count).map(|index| Growing::new(index, answer.clone())));
    let response = if generation.stream.is_some() {
        let body = Body { running: Some(running), begun: false, answering, render, out: Out::default() };
        let pings = KeepAlive::new().interval(server.options.keep_alive).text("ping");
        let mut response = Sse::new(body).keep_alive(pings).into_response();
        response.headers_mut().insert(UNBUFFERED, HeaderValue::from_static("no"));
        response
    } else {
        while let Some(event) = running.next().await {
            let (prompt, event) = event?;
            answering.take(prompt, event);
        }
        if generation.hands_over {
            answering.transferred = transferred(std::mem::take(&mut answering.saves)).await;
        }
        let deltas = answering.answers.iter_mut().map(Growing::take).collect();
        render.whole(&answering, deltas)
    };
    Ok(with_ignored(response, &ignored))
}

impl Growing {
    fn new(index: usize, answer: Option<AnswerParser>) -> Self {
        let delta = Delta { index, ..Delta::default() };
        Self { answer, has_begun: false, end: None, delta }
    }

    /// Adds to the text.
    fn push(&mut self, text: &str) {
        match &mut self.answer {
            Some(answer) => answer.push(text),
            None if text.is_empty() => {}
            None => add(&mut self.delta.pieces, AnswerPart::Text(text.to_owned())),
        }
    }

    /// Moves the parts of the text whose kind is certain to the addition that was not sent yet.
    fn settle(&mut self) {
        if let Some(answer) = &mut self.answer {
            answer.take().into_iter().for_each(|piece| add(&mut self.delta.pieces, piece));
        }
        self.delta.begins = !self.has_begun;
    }

    fn take(&mut self) -> Delta {
        self.has_begun = true;
        let next = Delta { index: self.delta.index, ..Delta::default() };
        std::mem::replace(&mut self.delta, next)
    }
}

impl Answering {
    /// Takes an event of a prompt; returns the index of the answer that it adds to.
    fn take(&mut self, prompt: usize, event: Event) -> Option<usize> {
        let index = self.add(prompt, event);
        let Usage { prompt_tokens, cached_tokens, output_tokens, .. } = self.usage;
        self.record.set_tokens(prompt_tokens, cached_tokens, output_tokens);
        index
    }

    fn add(&mut self, prompt: usize, event: Event) -> Option<usize> {
        self.engine.take(&event);
        let index = |sample: u32| prompt * self.samples + sample as usize;
        match event {
            Event::Started(started) => {
                self.usage.cached_tokens += u64::from(started.cached.total());
                None
            }
            Event::Prompt(scored) => {
                self.prompt_log_probs[prompt].extend(scored.log_probs);
                None
            }
            Event::Token(token) => {
                let index = index(token.sample);
                let growing = &mut self.answers[index];
                self.usage.output_tokens += 1;
                self.usage.reasoning_tokens +=
                    u64::from(growing.answer.as_ref().is_some_and(AnswerParser::is_thinking));
                growing.delta.ids.push(token.id);
                growing.delta.log_probs.extend(token.log_probs);
                growing.push(&token.text);
                growing.settle();
                Some(index)
            }
            Event::Finished(end) => {
                let index = index(end.sample);
                let growing = &mut self.answers[index];
                growing.push(&end.text);
                if let Some(answer) = &mut growing.answer {
                    answer.finish();
                }
                growing.settle();
                self.saves.extend(end.saves);
                let has_called = growing.answer.as_ref().is_some_and(AnswerParser::has_called);
                let end = End { reason: end.reason, has_called };
                growing.delta.end = Some(end.clone());
                growing.end = Some(end);
                Some(index)
            }
            _ => None,
        }
    }

    /// Returns the end of an answer, if it has ended.
    pub(crate) fn end_of(&self, index: usize) -> Option<&End> {
        self.answers[index].end.as_ref()
    }
}

/// Events that are to be sent.
#[derive(Debug, Default)]
pub(crate) struct Out(VecDeque<sse::Event>);

impl Out {
    /// Adds an event without a name; its data is a value as JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) {
        self.text(&serde_json::to_string(value).expect("replies are JSON"));
    }

    /// Adds an event with a name; its data is a value as JSON.
    pub(crate) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.named_text(name, &serde_json::to_string(value).expect("replies are JSON"));
    }

    /// Adds an event with a name; its data is a text.
    pub(crate) fn named_text(&mut self, name: &str, text: &str) {
        self.0.push_back(sse::Event::default().event(name).data(text));
    }

    /// Adds an event without a name; its data is a text.
    pub(crate) fn text(&mut self, text: &str) {
        self.0.push_back(sse::Event::default().data(text));
    }
}

/// The body of a stream.
struct Body<R> {
    /// Running requests of the call; `None` after the last event.
    running: Option<Running>,
    begun: bool,
    answering: Answering,
    render: R,
    out: Out,
}

impl<R: Render> Body<R> {
    fn take(&mut self, prompt: usize, event: Event) {
        let index = self.answering.take(prompt, event);
        if !std::mem::replace(&mut self.begun, true) {
            self.render.begin(&self.answering, &mut self.out);
        }
        if let Some(index) = index
            && self.render.is_due(&self.answering.answers[index].delta)
        {
            let delta = self.answering.answers[index].take();
            self.render.grow(&self.answering, delta, &mut self.out);
        }
    }
}

impl<R: Render> Stream for Body<R> {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let body = &mut *self;
        loop {
            if let Some(event) = body.out.0.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let Some(running) = &mut body.running else { return Poll::Ready(None) };
            let Poll::Ready(next) = Pin::new(running).poll_next(context) else { return Poll::Pending };
            match next {
                Some(Ok((prompt, event))) => body.take(prompt, event),
                Some(Err(error)) => {
                    body.render.fail(&body.answering, &error, &mut body.out);
                    body.running = None;
                }
                None => {
                    body.render.end(&body.answering, &mut body.out);
                    body.running = None;
                }
            }
        }
    }
}
