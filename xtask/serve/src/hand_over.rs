//! Prompts that one server prefills and another decodes: `kv_transfer_params`, as routers of vLLM send them.
//!
//! The router has one server prefill, with `do_remote_decode`, and gives the parameters of its reply to the server that
//! decodes. The blocks go through the store that both have as their remote tier. Each server looks up every prompt there, so
//! the parameters only say that the blocks have been written.

use std::time::{Duration, Instant};

use pagoda::Saves;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task;

use crate::error::ApiError;
use crate::fields::Reader;
use crate::server::Server;

/// Maximum time that a reply waits for the writes of its blocks. The other server computes what it does not find.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Parameters of a call that takes part in a hand-over. Places of blocks, as servers of other kinds state them, are refused.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) struct TransferParams {
    /// Another server goes on: the reply comes once the blocks of the prompt are in the common store, or after 10 seconds. It
    /// cannot be a stream.
    do_remote_decode: Option<bool>,
    /// Another server has prefilled. Prompts are looked up in the common store anyway.
    do_remote_prefill: Option<bool>,
}

impl TransferParams {
    /// Whether another server goes on. Without a common store, the parameters are ignored, as by vLLM without a connector.
    pub(crate) fn check(self, server: &Server, reader: &mut Reader) -> Result<bool, ApiError> {
        let [decodes, prefilled] =
            [self.do_remote_decode, self.do_remote_prefill].map(|flag| flag.unwrap_or(false));
        if (decodes || prefilled) && !server.shares_blocks() {
            reader.ignore("kv_transfer_params")?;
            return Ok(false);
        }
        Ok(decodes)
    }
}

/// Parameters of a reply, for the server that goes on: the writes of its blocks have ended.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "Transferred")]
pub(crate) struct Transferred {
    #[schemars(extend("const" = true))]
    do_remote_prefill: bool,
    #[schemars(extend("const" = false))]
    do_remote_decode: bool,
}

/// Waits for saves; returns the parameters of the reply if all have ended in time.
pub(crate) async fn transferred(saves: Vec<Saves>) -> Option<Transferred> {
    let until = Instant::now() + MAX_WAIT;
    let wait = move || saves.iter().all(|saves| saves.wait(until.saturating_duration_since(Instant::now())));
    let ended = task::spawn_blocking(wait).await.unwrap_or(false);
    ended.then_some(Transferred { do_remote_prefill: true, do_remote_decode: false })
}
