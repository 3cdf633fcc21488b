//! Recorded GPU work: plain data until it is submitted.

use super::{Bindings, Bound, Buf, Pipeline, Raw};
use bytemuck::Pod;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignment of the offsets of uniform bindings in WebGPU, in bytes.
const PARAMS_ALIGN: usize = 256;

/// A list of dispatches, copies and readbacks, in order.
#[derive(Debug)]
pub struct Pass {
    pub(super) label: &'static str,
    pub(super) commands: Vec<Command>,
    pub(super) params: Params,
    /// Offsets of parameter blocks, by content: equal blocks share a place, as most layers of a model differ only in
    /// buffers.
    places: FxHashMap<SmallVec<[u8; 64]>, u32>,
    pub(super) reads: Vec<(Raw, Range<u64>)>,
}

/// Parameter blocks of a pass, packed one after the other.
#[derive(Debug)]
pub(super) struct Params {
    pub(super) bytes: Vec<u8>,
    /// Number that identifies the pass.
    pub(super) pass: u64,
    /// Number of leading bytes that are on the device, unless parameters of another pass have replaced them.
    pub(super) sent: usize,
}

#[derive(Debug)]
pub(super) enum Command {
    Dispatch(Dispatch),
    Copy {
        from: Raw,
        from_at: u64,
        to: Raw,
        to_at: u64,
        bytes: u64,
    },
    /// Ends a submission here, so that no submission runs longer than a driver's watchdog allows.
    Cut,
    /// Ends a submission here, and also the part of the pass that `Gpu::send_first` sends.
    Hold,
    /// Ends a compute pass here.
    Split,
}

#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) bindings: Box<[Bound]>,
    pub(super) params_at: u32,
    pub(super) workgroups: [u32; 3],
}

/// Handle of a readback of a pass; [`PassResults::get`](super::PassResults::get) turns it into data.
#[derive(Debug)]
pub struct Read<T> {
    pub(super) index: usize,
    pub(super) element: PhantomData<fn() -> T>,
}

impl Pass {
    /// Creates an empty pass.
    #[must_use]
    pub fn new(label: &'static str) -> Self {
        static PASSES: AtomicU64 = AtomicU64::new(0);
        Self {
            label,
            commands: Vec::new(),
            params: Params { bytes: Vec::new(), pass: PASSES.fetch_add(1, Ordering::Relaxed), sent: 0 },
            places: FxHashMap::default(),
            reads: Vec::new(),
        }
    }

    /// Records one dispatch, of as many workgroups as the kernel's grid says. A dispatch without workgroups is skipped.
    ///
    /// # Panics
    /// When the parameters or buffers are those of another kernel, or a dimension exceeds 65,535 workgroups.
    pub fn dispatch<B: Bindings>(&mut self, pipeline: &Arc<Pipeline>, params: &B::Params, buffers: B) {
        let named = buffers.bound();
        let declared = pipeline.variant.bindings.iter().map(|binding| binding.name);
        debug_assert!(
            declared.clone().eq(named.iter().map(|(name, _)| *name)),
            "kernel {} binds {:?}, not {:?}",
            pipeline.variant.kernel.name,
            declared.collect::<Vec<_>>(),
            named.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        );
        let bindings = named.into_iter().map(|(_, bound)| bound).collect();
        self.push(pipeline, bytemuck::bytes_of(params), bindings);
    }

    /// Records a [`dispatch`](Self::dispatch) with the parameter block as bytes and bindings by position, for callers
    /// that keep dispatches as data.
    ///
    /// # Panics
    /// As `dispatch`.
    pub fn dispatch_bytes(&mut self, pipeline: &Arc<Pipeline>, params: &[u8], bindings: &[Bound]) {
        self.push(pipeline, params, bindings.into());
    }

    fn push(&mut self, pipeline: &Arc<Pipeline>, params: &[u8], bindings: Box<[Bound]>) {
        let kernel = pipeline.variant.kernel;
        let workgroups = pipeline.variant.grid_of(params);
        assert_eq!(bindings.len(), pipeline.variant.bindings.len(), "bindings of kernel {}", kernel.name);
        let most = workgroups.iter().max();
        assert!(
            most <= Some(&65_535),
            "kernel {}: workgroups {workgroups:?}, the limit is 65535 a dimension",
            kernel.name
        );
        if workgroups.contains(&0) {
            return;
        }
        let params_at = self.place(params);
        self.commands.push(Command::Dispatch(Dispatch {
            pipeline: Arc::clone(pipeline),
            bindings,
            params_at,
            workgroups,
        }));
    }

    /// Records a copy of `range` (in elements) of `from` to element `at` of `to`.
    ///
    /// # Panics
    /// When either range leaves its buffer.
    pub fn copy<T: Pod>(&mut self, from: &Buf<T>, range: Range<usize>, to: &Buf<T>, at: usize) {
        assert!(range.end <= from.len(), "copy of {range:?} from {} elements", from.len());
        assert!(at + range.len() <= to.len(), "copy of {} to {at} in {} elements", range.len(), to.len());
        self.commands.push(Command::Copy {
            from: from.raw().clone(),
            from_at: (range.start * size_of::<T>()) as u64,
            to: to.raw().clone(),
            to_at: (at * size_of::<T>()) as u64,
            bytes: (range.len() * size_of::<T>()) as u64,
        });
    }

    /// Records a readback of `range` (in elements), which is copied after all work of the pass.
    ///
    /// # Panics
    /// When the range leaves the buffer.
    pub fn read<T: Pod>(&mut self, buf: &Buf<T>, range: Range<usize>) -> Read<T> {
        assert!(range.end <= buf.len(), "read of {range:?} from {} elements", buf.len());
        let bytes = (range.start * size_of::<T>()) as u64..(range.end * size_of::<T>()) as u64;
        self.reads.push((buf.raw().clone(), bytes));
        Read { index: self.reads.len() - 1, element: PhantomData }
    }

    /// Ends a submission here: later commands are submitted separately.
    pub fn cut(&mut self) {
        if !matches!(self.commands.last(), None | Some(Command::Cut)) {
            self.commands.push(Command::Cut);
        }
    }

    /// Ends the part that [`Gpu::send_first`](super::Gpu::send_first) sends. Data that only later commands read can
    /// be written until the rest is sent. A pass has at most one hold.
    pub fn hold(&mut self) {
        self.commands.push(Command::Hold);
    }

    /// Places a barrier between all commands before and after this call. Later dispatches run concurrently unless
    /// they share a buffer that one of them writes; dispatches before this barrier no longer count.
    pub fn split(&mut self) {
        if matches!(self.commands.last(), Some(Command::Dispatch(_))) {
            self.commands.push(Command::Split);
        }
    }

    /// Number of dispatches recorded and not yet submitted.
    #[must_use]
    pub fn dispatches(&self) -> usize {
        self.commands.iter().filter(|c| matches!(c, Command::Dispatch(_))).count()
    }

    /// Digest of the work of the pass. Passes have equal digests if they run the same kernels with the same
    /// parameters on the same buffers, in the same order.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hasher = FxHasher::default();
        self.params.bytes.hash(&mut hasher);
        for command in &self.commands {
            match command {
                Command::Dispatch(Dispatch { pipeline, bindings, params_at, workgroups }) => {
                    (Arc::as_ptr(pipeline), params_at, workgroups).hash(&mut hasher);
                    bindings.iter().for_each(|bind| bind.key().hash(&mut hasher));
                }
                Command::Copy { from, from_at, to, to_at, bytes } => {
                    (from.id(), from_at, to.id(), to_at, bytes).hash(&mut hasher);
                }
                Command::Cut | Command::Hold | Command::Split => {}
            }
            std::mem::discriminant(command).hash(&mut hasher);
        }
        self.reads.iter().for_each(|(raw, range)| (raw.id(), range).hash(&mut hasher));
        hasher.finish()
    }

    fn place(&mut self, bytes: &[u8]) -> u32 {
        if let Some(at) = self.places.get(bytes) {
            return *at;
        }
        let params = &mut self.params.bytes;
        let at = u32::try_from(params.len()).expect("a pass has under 4 GiB of parameters");
        params.extend_from_slice(bytes);
        params.resize(params.len().next_multiple_of(PARAMS_ALIGN), 0);
        self.places.insert(bytes.into(), at);
        at
    }
}
