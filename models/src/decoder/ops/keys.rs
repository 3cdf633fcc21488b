//! Keys in the recording context: recording with the ring and with page slots.

use super::Ctx;
use crate::decoder::keys::{KeySource, Needed, PageContext, Residency, RingKeys, TransferContext};

impl Ctx<'_> {
    /// Calls `record` with the ring, if blocks pass through one.
    pub(in crate::decoder) fn on_ring<R>(
        &mut self,
        record: impl FnOnce(&mut RingKeys, &mut TransferContext<'_>) -> R,
    ) -> Option<R> {
        let mut context = TransferContext {
            gpu: self.gpu,
            pass: self.pass,
            kv: self.kv,
            batch: self.batch,
            offload_plan: self.offload_plan,
        };
        self.keys.ring_mut().map(|ring| record(ring, &mut context))
    }

    /// Calls `record` with the slots for selected pages, if there are any.
    pub(in crate::decoder) fn on_pages(&mut self, record: impl FnOnce(&mut Residency, &mut PageContext<'_>)) {
        if let KeySource::Pages { ring, pages } = self.keys {
            let (pass, tables, written) =
                (&mut *self.pass, self.batch.tables.on_device(), ring.written(self.kv));
            record(pages, &mut PageContext { pass, kv: self.kv, tables, written });
        }
    }

    /// Fetches the pages that lists name to the device.
    pub(in crate::decoder) fn make_resident(&mut self, needed: &Needed<'_>) {
        if !self.keys.on_disk() {
            return self.on_pages(|pages, context| pages.make_resident(context, needed));
        }
        if let KeySource::Pages { ring, pages } = self.keys {
            let (pass, gpu) = (&mut *self.pass, self.gpu);
            let mut context = TransferContext {
                gpu,
                pass,
                kv: self.kv,
                batch: self.batch,
                offload_plan: self.offload_plan,
            };
            pages.fetch_from_disk(&mut context, ring, needed);
        }
    }
}
