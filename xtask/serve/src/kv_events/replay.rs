//! Batches that are sent again, to subscribers that missed them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;
use zeromq::{RouterSendHalf, RouterSocket, SocketRecv as _, SocketSend as _, ZmqMessage};

/// Number of batches that are kept, as in vLLM.
const MAX_KEPT: usize = 10_000;

/// Maximum number of bytes of all kept batches. A batch of a long prompt has some 5 bytes per token.
const MAX_KEPT_BYTES: usize = 256 << 20;

/// Number of replies that are written at one time; further requests wait.
const MAX_REPLIES: usize = 16;

/// Maximum time for one message of a reply. A reader that takes longer gets no further messages.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of the last message of a reply.
const END: i64 = -1;

/// The last batches.
pub(super) struct Replay {
    topic: Bytes,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Replay {
    pub(super) fn new(topic: Bytes) -> Self {
        Self { topic, kept: Mutex::default() }
    }

    /// Keeps a batch in place of the oldest.
    pub(super) fn keep(&self, seq: u64, payload: Bytes) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += payload.len();
        kept.batches.push_back((seq, payload));
        while kept.batches.len() > MAX_KEPT || kept.bytes > MAX_KEPT_BYTES {
            let Some((_, oldest)) = kept.batches.pop_front() else { break };
            kept.bytes -= oldest.len();
        }
    }

    /// Kept batches from number `start` on.
    fn since(&self, start: u64) -> Vec<(u64, Bytes)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.batches.iter().filter(|(seq, _)| *seq >= start).cloned().collect()
    }

    /// Answers requests. Each reply has all kept batches from the requested number on, then an end. Batches that are no
    /// longer kept, or not there yet, are left out; a reader notices this by the first number.
    pub(super) async fn serve(self: Arc<Self>, socket: RouterSocket) {
        let (sender, mut requests) = socket.split();
        let places = Arc::new(Semaphore::new(MAX_REPLIES));
        let mut replies = JoinSet::new();
        while let Ok(request) = requests.recv().await {
            while replies.try_join_next().is_some() {}
            let frames = request.into_vec();
            let start =
                frames.get(2).and_then(|start| Some(u64::from_be_bytes(start.as_ref().try_into().ok()?)));
            let (Some(start), [reader, empty, _]) = (start, frames.as_slice()) else {
                debug!(frames = frames.len(), "a request for KV events that is none");
                continue;
            };
            let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
            let (replay, mut sender) = (Arc::clone(&self), sender.clone());
            let head = vec![reader.clone(), empty.clone()];
            replies.spawn(async move {
                // Who asked may have gone.
                let _ = replay.reply(&mut sender, head, start).await;
                drop(place);
            });
        }
    }

    /// Sends the kept batches from number `start` on; `None` if the reader does not take them.
    async fn reply(&self, sender: &mut RouterSendHalf, head: Vec<Bytes>, start: u64) -> Option<()> {
        let message = |topic: &Bytes, number: [u8; 8], payload: Bytes| {
            let body = [topic.clone(), Bytes::copy_from_slice(&number), payload];
            ZmqMessage::try_from(head.iter().cloned().chain(body).collect::<Vec<_>>()).ok()
        };
        for (seq, payload) in self.since(start) {
            let message = message(&self.topic, seq.to_be_bytes(), payload)?;
            timeout(PATIENCE, sender.send(message)).await.ok()?.ok()?;
        }
        let end = message(&Bytes::new(), END.to_be_bytes(), Bytes::new())?;
        timeout(PATIENCE, sender.send(end)).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batches_are_kept() {
        let replay = Replay::new(Bytes::new());
        (0..MAX_KEPT as u64 + 5).for_each(|seq| replay.keep(seq, Bytes::from_static(b"batch")));
        let numbers = |start| replay.since(start).into_iter().map(|(seq, _)| seq).collect::<Vec<_>>();
        assert_eq!(numbers(0), (5..MAX_KEPT as u64 + 5).collect::<Vec<_>>());
        assert_eq!(numbers(MAX_KEPT as u64 + 4), [MAX_KEPT as u64 + 4]);
        assert_eq!(numbers(1 << 40), [0; 0]);
        let large = Bytes::from(vec![0; MAX_KEPT_BYTES / 2 + 1]);
        (0..3).for_each(|n| replay.keep(20_000 + n, large.clone()));
        assert_eq!(numbers(0), [20_002], "two of them are too many bytes");
    }
}
