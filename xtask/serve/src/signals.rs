//! Signals to the server.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and Ctrl-C, which end the server.
#[derive(Debug)]
#[cfg(unix)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Completes with the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// SIGHUP, which has the server read its files again.
#[derive(Debug)]
#[cfg(unix)]
pub(crate) struct Hangup(Signal);

#[cfg(unix)]
impl Hangup {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::hangup())?))
    }

    /// Completes with the next signal.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// Ctrl-C, which ends the server.
#[derive(Debug)]
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    #[expect(clippy::unnecessary_wraps, reason = "as on Unix")]
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    /// Completes with the next signal; never if the system has none.
    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// No signal: files are read at the start only.
#[derive(Debug)]
#[cfg(not(unix))]
pub(crate) struct Hangup;

#[cfg(not(unix))]
impl Hangup {
    #[expect(clippy::unnecessary_wraps, reason = "as on Unix")]
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    /// Never completes.
    pub(crate) async fn next(&mut self) {
        std::future::pending().await
    }
}
