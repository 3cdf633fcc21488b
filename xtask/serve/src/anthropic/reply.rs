//! Answers in Anthropic's shape.

use axum::response::Response;
use pagoda::FinishReason;
use pagoda::tools::{AnswerPart, CallPart, readable};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::error_json;
use crate::answering::{self, Answering, Delta, End, Out, Render};
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::hand_over::Transferred;
use crate::ids::new_id;
use crate::reply;

/// Writes an answer as a message, whole or as a stream of named events.
#[derive(Debug)]
pub(super) struct MessagesRender {
    id: String,
    /// Kind of the content block that is growing.
    open: Option<Kind>,
    /// Number of blocks that have begun.
    blocks: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    ToolUse,
}

/// A message, with the content generated so far.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicReply")]
pub(crate) struct MessagesReply<'a> {
    id: &'a str,
    #[schemars(extend("const" = "message"))]
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block>,
    #[serde(flatten)]
    stop: Stop<'a>,
    stop_details: Option<()>,
    container: Option<()>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pagoda: Option<&'a EngineUse>,
    /// Parameters for the server that goes on, if the blocks of the prompt are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<Transferred>,
}

/// Why an answer ended: `end_turn`, `max_tokens`, `tool_use`, or `stop_sequence` with its text.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicStop")]
pub(crate) struct Stop<'a> {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
}

/// A block of a message.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AnthropicBlock")]
pub(crate) enum Block {
    Thinking {
        thinking: String,
        /// Always empty.
        signature: &'static str,
    },
    Text {
        text: String,
        /// Always empty. The API's document requires the field, and some clients take a list only.
        citations: [(); 0],
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
        caller: Caller,
    },
}

/// Caller of a tool: the model itself, not a program on a server.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Caller {
    Direct,
}

/// An event of a stream.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AnthropicEvent")]
pub(crate) enum MessagesEvent<'a> {
    MessageStart { message: MessagesReply<'a> },
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Stop<'a>, usage: Usage, pagoda: &'a EngineUse },
    MessageStop {},
}

/// An addition to a block.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "AnthropicDelta")]
pub(crate) enum BlockDelta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    /// The end of a thought.
    #[serde(rename = "signature_delta")]
    Signature {
        /// Always empty.
        signature: &'static str,
    },
}

/// Numbers of tokens of a call, cached ones counted separately. The API's document requires the fields that are null here.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicUsage")]
pub(crate) struct Usage {
    /// Number of tokens that were computed.
    input_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
    output_tokens: u64,
    cache_creation: Option<()>,
    inference_geo: Option<()>,
    output_tokens_details: Option<()>,
    server_tool_use: Option<()>,
    service_tier: &'static str,
}

impl<'a> From<Option<&'a End>> for Stop<'a> {
    fn from(end: Option<&'a End>) -> Self {
        let Some(End { reason, has_called }) = end else { return Self::default() };
        let (reason, stop_sequence) = match reason {
            FinishReason::Length => ("max_tokens", None),
            _ if *has_called => ("tool_use", None),
            FinishReason::StopText(text) => ("stop_sequence", Some(text.as_str())),
            _ => ("end_turn", None),
        };
        Self { stop_reason: Some(reason), stop_sequence }
    }
}

impl From<answering::Usage> for Usage {
    fn from(used: answering::Usage) -> Self {
        Self {
            input_tokens: used.prompt_tokens - used.cached_tokens,
            cache_read_input_tokens: used.cached_tokens,
            cache_creation_input_tokens: 0,
            output_tokens: used.output_tokens,
            cache_creation: None,
            inference_geo: None,
            output_tokens_details: None,
            server_tool_use: None,
            service_tier: "standard",
        }
    }
}

impl MessagesEvent<'_> {
    /// The name of the event, which is its type.
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop {} => "message_stop",
        }
    }

    fn send(&self, out: &mut Out) {
        out.named(self.name(), self);
    }
}

impl Block {
    fn thinking(thinking: String) -> Self {
        Self::Thinking { thinking, signature: "" }
    }

    fn text(text: String) -> Self {
        Self::Text { text, citations: [] }
    }

    fn tool_use(name: String, input: Map<String, Value>) -> Self {
        Self::ToolUse { id: new_id("toolu"), name, input, caller: Caller::Direct }
    }
}

impl MessagesRender {
    pub(super) fn new(id: String) -> Self {
        Self { id, open: None, blocks: 0 }
    }

    fn message<'a>(
        &'a self,
        answering: &'a Answering,
        content: Vec<Block>,
        end: Option<&'a End>,
    ) -> MessagesReply<'a> {
        MessagesReply {
            id: &self.id,
            r#type: "message",
            role: "assistant",
            model: &answering.server.options.model_name,
            content,
            stop: end.into(),
            stop_details: None,
            container: None,
            usage: answering.usage.into(),
            pagoda: end.map(|_| &answering.engine),
            kv_transfer_params: answering.transferred,
        }
    }

    fn begin_block(&mut self, kind: Kind, content_block: Block, out: &mut Out) {
        self.close(out);
        MessagesEvent::ContentBlockStart { index: self.blocks, content_block }.send(out);
        self.open = Some(kind);
        self.blocks += 1;
    }

    fn add(&self, delta: BlockDelta, out: &mut Out) {
        MessagesEvent::ContentBlockDelta { index: self.blocks - 1, delta }.send(out);
    }

    fn close(&mut self, out: &mut Out) {
        let Some(kind) = self.open.take() else { return };
        if kind == Kind::Thinking {
            // Clients send back thoughts that were signed, and warn of others.
            self.add(BlockDelta::Signature { signature: "" }, out);
        }
        MessagesEvent::ContentBlockStop { index: self.blocks - 1 }.send(out);
    }

    fn send(&mut self, piece: AnswerPart, out: &mut Out) {
        match piece {
            AnswerPart::Thought(thinking) => {
                if self.open != Some(Kind::Thinking) {
                    self.begin_block(Kind::Thinking, Block::thinking(String::new()), out);
                }
                self.add(BlockDelta::Thinking { thinking }, out);
            }
            AnswerPart::Text(text) => {
                if self.open != Some(Kind::Text) {
                    self.begin_block(Kind::Text, Block::text(String::new()), out);
                }
                self.add(BlockDelta::Text { text }, out);
            }
            AnswerPart::Call(CallPart { name, arguments: partial_json, .. }) => {
                if let Some(name) = name {
                    self.begin_block(Kind::ToolUse, Block::tool_use(name, Map::new()), out);
                }
                if !partial_json.is_empty() {
                    self.add(BlockDelta::InputJson { partial_json }, out);
                }
            }
        }
    }
}

impl Render for MessagesRender {
    fn begin(&mut self, answering: &Answering, out: &mut Out) {
        MessagesEvent::MessageStart { message: self.message(answering, Vec::new(), None) }.send(out);
    }

    fn grow(&mut self, _: &Answering, delta: Delta, out: &mut Out) {
        delta.pieces.into_iter().for_each(|piece| self.send(piece, out));
    }

    fn end(&mut self, answering: &Answering, out: &mut Out) {
        self.close(out);
        let (delta, usage) = (answering.end_of(0).into(), answering.usage.into());
        MessagesEvent::MessageDelta { delta, usage, pagoda: &answering.engine }.send(out);
        MessagesEvent::MessageStop {}.send(out);
    }

    fn fail(&mut self, _: &Answering, error: &ApiError, out: &mut Out) {
        out.named_text("error", &error_json(error));
    }

    fn whole(&mut self, answering: &Answering, deltas: Vec<Delta>) -> Response {
        let block = |piece| match piece {
            AnswerPart::Thought(thought) => Block::thinking(thought),
            AnswerPart::Text(text) => Block::text(text),
            AnswerPart::Call(CallPart { name, arguments, .. }) => {
                Block::tool_use(name.unwrap_or_default(), readable(&arguments))
            }
        };
        let pieces = deltas.into_iter().flat_map(|delta| delta.pieces);
        let mut content: Vec<Block> = pieces.map(block).collect();
        if content.iter().all(|block| matches!(block, Block::Thinking { .. })) {
            content.push(Block::text(String::new()));
        }
        reply::json(&self.message(answering, content, answering.end_of(0)))
    }
}
