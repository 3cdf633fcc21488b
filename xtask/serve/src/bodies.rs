//! The bodies of calls, which together have a bound.

use std::ops::Deref;
use std::sync::Arc;

use axum::body::{Body as Incoming, Bytes};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::error::ApiError;

/// Number of bytes that are counted as one unit, because a semaphore counts at most 2^29 on machines of 32 bits.
const UNIT: usize = 1 << 10;

/// Maximum number of bytes that are allocated for a body by its announced length, before any byte has arrived.
const MAX_ANNOUNCED: usize = 64 << 10;

/// Memory budget of the bodies of all calls.
#[derive(Debug)]
pub(crate) struct Bodies {
    room: Arc<Semaphore>,
    max: usize,
}

/// The body of a call. Its memory budget is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Bytes,
    _held: OwnedSemaphorePermit,
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why a body was not read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The body exceeds the maximum size.
    TooLarge,
    /// The bodies being received have the maximum number of bytes together.
    Full { max: usize },
    /// The connection broke, or sent no HTTP.
    Broken(axum::Error),
}

impl Bodies {
    /// A budget of `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        let units = (max / UNIT).clamp(1, Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(units)), max }
    }

    /// Reads a body of up to `max` bytes; `announced` is the length that its header announces.
    pub(crate) async fn read(
        &self,
        mut body: Incoming,
        max: usize,
        announced: Option<usize>,
    ) -> Result<Body, Unread> {
        // Room is taken as bytes come: announcing them costs a client nothing.
        let mut held = self.take(0)?;
        let mut bytes = Vec::with_capacity(announced.unwrap_or(0).min(max).min(MAX_ANNOUNCED));
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(Unread::Broken)?.into_data() else { continue };
            if data.len() > max - bytes.len() {
                return Err(Unread::TooLarge);
            }
            let needed = (bytes.len() + data.len()).div_ceil(UNIT);
            held.merge(self.take(needed - held.num_permits())?);
            bytes.extend_from_slice(&data);
        }
        Ok(Body { bytes: bytes.into(), _held: held })
    }

    fn take(&self, units: usize) -> Result<OwnedSemaphorePermit, Unread> {
        let full = || Unread::Full { max: self.max };
        let units = u32::try_from(units).map_err(|_| full())?;
        Arc::clone(&self.room).try_acquire_many_owned(units).map_err(|error| match error {
            TryAcquireError::NoPermits | TryAcquireError::Closed => full(),
        })
    }
}

impl From<Unread> for ApiError {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Full { max } => {
                Self::busy(format!("the bodies of all calls have {max} bytes together, which is the limit"))
            }
            Unread::Broken(error) => Self::invalid(format!("the body cannot be read: {error}")),
            Unread::TooLarge => Self::invalid("the body is too large"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bodies: &Bodies, bytes: usize, max: usize) -> Result<Body, Unread> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(bodies.read(Incoming::from(vec![b' '; bytes]), max, Some(bytes)))
    }

    #[test]
    fn bodies_share_their_room_and_give_it_back() {
        let bodies = Bodies::new(4096);
        let first = read(&bodies, 3000, 4096).unwrap();
        assert_eq!(first.len(), 3000);
        assert!(matches!(read(&bodies, 1025, 4096), Err(Unread::Full { max: 4096 })));
        let second = read(&bodies, 1024, 4096).unwrap();
        drop((first, second));
        assert!(matches!(read(&bodies, 4097, 4096), Err(Unread::TooLarge)));
        assert_eq!(read(&bodies, 4096, 4096).unwrap().len(), 4096);
    }
}
