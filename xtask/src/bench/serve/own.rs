//! The server that `cargo xtask serve` starts, in this process.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use pagoda::{EngineHandle, Model, Shutdown};
use serde::Serialize;
use tokio::net::TcpListener;

use super::prompt::Form;
use crate::cli::{EngineArgs, ServeArgs};
use crate::serve::start;

/// A server at a port of its own.
pub(super) struct Own {
    pub(super) address: SocketAddr,
    pub(super) adapter: Adapter,
    handle: EngineHandle,
}

/// Device of the server's engine.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) level: String,
}

impl Own {
    /// Starts a server with an empty KV cache.
    ///
    /// # Errors
    /// Errors of the model and the device.
    pub(super) async fn start(engine: &EngineArgs, model: &Arc<Model>) -> Result<Self> {
        let args = ServeArgs { engine: engine.clone(), no_disk_kv: true, ..ServeArgs::default() };
        let (handle, options) = start(&args, model)?;
        let adapter = handle.call(|engine| {
            let gpu = engine.decoder().gpu();
            let level = format!("{:?}", gpu.level());
            Adapter { name: gpu.info().name.clone(), driver: gpu.info().driver_info.clone(), level }
        })?;
        let adapter = adapter.await.context("the engine ended")?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = serve::router(handle.clone(), options);
        tokio::spawn(serve::serve(listener, router, std::future::pending()));
        Ok(Self { address, adapter, handle })
    }

    /// Ends the engine, so that the next one finds the device empty.
    pub(super) async fn stop(self) {
        self.handle.shutdown(Shutdown::Now).await;
    }
}

/// The form of the prompts of a model: ids where it has no tokenizer.
pub(super) fn form_of(model: &Model) -> Form {
    if model.tokenizer.is_some() { Form::Text } else { Form::Ids }
}
