//! The server that `cargo xtask serve` starts, in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pagoda::{Model, Replicas, Shutdown};
use serde::Serialize;
use std::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::cli::{EngineArgs, Loss, PromptForm, ServeArgs};
use crate::serve::start;

/// A server at a port of its own.
pub(super) struct Own {
    pub(super) address: SocketAddr,
    pub(super) adapter: Adapter,
    engines: Replicas,
    /// Sender that ends the connections when it is dropped.
    stop: oneshot::Sender<()>,
    connections: JoinHandle<std::io::Result<()>>,
}

/// Time for the client's connections to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

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
        let (engines, options) = start(&args, model)?;
        let adapter = engines.engines()[0].call(|engine| {
            let gpu = engine.decoder().gpu();
            let level = format!("{:?}", gpu.level());
            Adapter { name: gpu.info().name.clone(), driver: gpu.info().driver_info.clone(), level }
        })?;
        let adapter = adapter.await.context("the engine ended")?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let router = serve::router(engines.clone(), options);
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move { drop(stopped.await) };
        let connections =
            tokio::spawn(serve::serve(listener, router, serve::Connections::default(), stopped));
        Ok(Self { address, adapter, engines, stop, connections })
    }

    /// Loses the device of an engine, which is then opened anew.
    ///
    /// # Errors
    /// If there is no such engine.
    pub(super) async fn lose(&self, loss: Loss) -> Result<()> {
        sleep(loss.after).await;
        let engines = self.engines.engines();
        let missing =
            || format!("--lose: there is no engine {}, the server has {}", loss.engine, engines.len());
        let engine = engines.get(loss.engine).with_context(missing)?;
        engine.call(|engine| engine.decoder().gpu().destroy())?.await.context("the engine ended")
    }

    /// Ends the engine and the connections, so that the next server finds the device empty.
    pub(super) async fn stop(self) {
        self.engines.shutdown(Shutdown::Now).await;
        drop(self.stop);
        let _ = timeout(CLOSE_TIMEOUT, self.connections).await;
    }
}

/// The form of the prompts of a model: ids if it has no tokenizer.
pub(super) fn form_of(model: &Model) -> PromptForm {
    if model.tokenizer.is_some() { PromptForm::Text } else { PromptForm::Ids }
}
