//! A lost device: the engine continues with a new one.

use super::Engine;
use crate::Note;
use crate::error::Error;
use crate::snapshot::Totals;
use crate::tiers::Tiers;

impl Engine {
    /// Whether a device was lost, so that every step fails.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.decoder.is_lost()
    }

    /// Opens a new device after the old one was lost, and loads the model again. All sequences go on: the KV of their tokens
    /// is computed again, requests that had not started may load theirs from the tiers, and the next tokens are the same as
    /// without the loss.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), also if there is room for another number of KV blocks than before. The
    /// sequences are lost then.
    pub fn reopen(self) -> Result<Self, Error> {
        let Self {
            model,
            mut options,
            decoder,
            tiers,
            mut scheduler,
            live,
            totals,
            unsent,
            kv_used,
            followers,
            ..
        } = self;
        for lost in decoder.stages().iter().filter(|stage| stage.gpu().is_lost()) {
            options.notes.tell(&Note::DeviceLost { adapter: lost.gpu().info().name.clone() });
        }
        let wanted = decoder.num_blocks();
        options.kv_blocks = Some(decoder.device_blocks());
        // The host tier stays; the others finish their writes and free their folders. The decoder frees what is left of the
        // device.
        let host = tiers.as_ref().and_then(Tiers::host);
        drop((tiers, decoder));
        scheduler.restart_all();
        let mut new = Self::open_shared(model, options)?;
        drop(host);
        let blocks = new.decoder.num_blocks();
        if blocks != wanted {
            return Err(Error::KvBlocks { wanted, blocks, limit: blocks });
        }
        new.scheduler = scheduler;
        new.totals = Totals { recoveries: totals.recoveries + 1, ..totals };
        (new.live, new.unsent, new.kv_used, new.followers) = (live, unsent, kv_used, followers);
        new.tell_followers();
        Ok(new)
    }
}
