//! Sources of KV events, as the server lists them.

use schemars::JsonSchema;
use serde::Serialize;

/// A publisher of the KV events of one engine.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct KvEventSource {
    /// Number of the engine, which is one of vLLM's data-parallel ranks to routers.
    pub(crate) data_parallel_rank: u16,
    /// Address of the events.
    pub(crate) endpoint: String,
    /// Address that sends batches again.
    pub(crate) replay_endpoint: Option<String>,
    /// First frame of every message.
    pub(crate) topic: String,
}
