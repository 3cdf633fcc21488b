//! Sources of connections: a TCP port or a Unix socket.

use std::io;
use std::net;
#[cfg(unix)]
use std::os::unix::net as unix;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;

/// Source of connections.
#[derive(Debug)]
#[non_exhaustive]
pub enum Listener {
    /// A TCP port.
    Tcp(net::TcpListener),
    /// A Unix socket.
    #[cfg(unix)]
    Unix(unix::UnixListener),
}

impl From<net::TcpListener> for Listener {
    fn from(listener: net::TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

#[cfg(unix)]
impl From<unix::UnixListener> for Listener {
    fn from(listener: unix::UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// The bytes of a connection.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Connection for S {}

/// A listener of the runtime.
#[derive(Debug)]
pub(crate) enum Accepting {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

impl Accepting {
    /// Hands the listener to the runtime.
    pub(crate) fn new(listener: Listener) -> io::Result<Self> {
        match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(TcpListener::from_std(listener)?))
            }
            #[cfg(unix)]
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(UnixListener::from_std(listener)?))
            }
        }
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Connection>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Tokens are small, and must not wait for more.
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            Self::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}
