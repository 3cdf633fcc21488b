//! A service whose requests are lost, whose answers are late, of another object, or forged, and whose writes arrive in any order.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prefetch::clock::Clock;
use prefetch::testing::Rng;
use prefetch::tier::{ObjectError, Objects, Stored};

/// Faults per 1,000 requests.
#[derive(Clone, Copy, Default)]
pub(super) struct ServiceFaults {
    /// Requests that never arrive: an error after the timeout.
    pub(super) lost: u16,
    /// Requests that are carried out, though their answer is lost; writes among them arrive at some later time.
    pub(super) late: u16,
    /// Reads that bring something else: another object, part of one, or changed bytes.
    pub(super) forged: u16,
    /// Objects that somebody else removes or overwrites.
    pub(super) meddled: u16,
}

/// Time that goes on as the test says, and by the timeouts of lost requests.
#[derive(Clone, Default)]
pub(super) struct SimClock(Arc<Mutex<Duration>>);

impl SimClock {
    pub(super) fn advance(&self, time: Duration) {
        *hold(&self.0) += time;
    }
}

impl Clock for SimClock {
    fn now(&self) -> Duration {
        *hold(&self.0)
    }
}

/// The service. Clones share it.
#[derive(Clone)]
pub(super) struct SimService {
    state: Arc<Mutex<State>>,
    clock: SimClock,
}

struct State {
    rng: Rng,
    faults: ServiceFaults,
    objects: BTreeMap<String, Vec<u8>>,
    /// Writes on their way.
    late: Vec<(String, Vec<u8>)>,
    lies: u64,
}

const TIMEOUT: Duration = Duration::from_secs(5);

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimService {
    pub(super) fn new(rng: Rng, clock: SimClock) -> Self {
        let (objects, late) = (BTreeMap::new(), Vec::new());
        let state = State { rng, faults: ServiceFaults::default(), objects, late, lies: 0 };
        Self { state: Arc::new(Mutex::new(state)), clock }
    }

    pub(super) fn set_faults(&self, faults: ServiceFaults) {
        hold(&self.state).faults = faults;
    }

    /// Answers so far that were not what the service holds.
    pub(super) fn lies(&self) -> u64 {
        hold(&self.state).lies
    }

    /// Lets every write arrive that is on its way.
    pub(super) fn settle(&self) {
        let state = &mut *hold(&self.state);
        state.objects.extend(std::mem::take(&mut state.late));
    }

    /// Begins a request. Some of the writes on their way arrive first, and somebody may meddle.
    fn begin(&self) -> Result<MutexGuard<'_, State>, ObjectError> {
        let mut state = hold(&self.state);
        while !state.late.is_empty() && state.rng.chance(300) {
            let State { rng, late, objects, .. } = &mut *state;
            let at = rng.index(late.len());
            let (name, object) = late.swap_remove(at);
            objects.insert(name, object);
        }
        let faults = state.faults;
        if state.rng.chance(faults.meddled) && !state.objects.is_empty() {
            state.meddle();
        }
        if state.rng.chance(faults.lost) {
            self.clock.advance(TIMEOUT);
            return Err(timed_out());
        }
        Ok(state)
    }

    /// Ends a request that was carried out.
    fn end<T>(&self, state: &mut State, value: T) -> Result<T, ObjectError> {
        if state.rng.chance(state.faults.late) {
            self.clock.advance(TIMEOUT);
            return Err(timed_out());
        }
        self.clock.advance(Duration::from_micros(state.rng.below(2000)));
        Ok(value)
    }
}

fn timed_out() -> ObjectError {
    ObjectError::Failed(Box::new(io::Error::from(io::ErrorKind::TimedOut)))
}

impl State {
    fn any(&mut self) -> String {
        let at = self.rng.index(self.objects.len());
        self.objects.keys().nth(at).expect("an index below their number").clone()
    }

    fn meddle(&mut self) {
        self.lies += 1;
        let (name, other) = (self.any(), self.any());
        match self.rng.below(4) {
            0 => drop(self.objects.remove(&name)),
            1 => drop(self.objects.insert(name, self.objects[&other].clone())),
            2 => {
                let object = self.objects.get_mut(&name).expect("it is there");
                let len = self.rng.index(object.len() + 1);
                object.truncate(len);
            }
            _ => {
                let object = self.objects.get_mut(&name).expect("it is there");
                if !object.is_empty() {
                    let at = self.rng.index(object.len());
                    object[at] ^= 1 << self.rng.below(8);
                }
            }
        }
    }

    fn read(&mut self, name: &str, range: &Range<u64>) -> Result<Vec<u8>, ObjectError> {
        let forged = self.rng.chance(self.faults.forged) && !self.objects.is_empty();
        self.lies += u64::from(forged);
        let name = if forged && self.rng.chance(500) { self.any() } else { name.to_owned() };
        let object = self.objects.get(&name).ok_or(ObjectError::NotFound)?;
        let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).expect("a small object"));
        let mut bytes = object.get(start..end).ok_or(ObjectError::Short)?.to_vec();
        if forged && !bytes.is_empty() {
            match self.rng.below(3) {
                0 => {
                    let len = self.rng.index(bytes.len());
                    bytes.truncate(len);
                }
                1 => bytes.fill_with(|| self.rng.bits().to_le_bytes()[0]),
                _ => {
                    let at = self.rng.index(bytes.len());
                    bytes[at] ^= 1 << self.rng.below(8);
                }
            }
        }
        Ok(bytes)
    }
}

impl Objects for SimService {
    fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, ObjectError> {
        let mut state = self.begin()?;
        let bytes = state.read(name, &range)?;
        self.end(&mut state, bytes)
    }

    fn size(&self, name: &str) -> Result<u64, ObjectError> {
        let mut state = self.begin()?;
        let size = state.objects.get(name).ok_or(ObjectError::NotFound)?.len() as u64;
        self.end(&mut state, size)
    }

    fn exist(&self, names: &[String]) -> Result<Vec<bool>, ObjectError> {
        let mut state = self.begin()?;
        let mut exist: Vec<bool> = names.iter().map(|name| state.objects.contains_key(name)).collect();
        let forged = state.faults.forged;
        if state.rng.chance(forged) {
            state.lies += 1;
            let at = state.rng.index(exist.len());
            exist[at] = !exist[at];
        }
        self.end(&mut state, exist)
    }

    fn write(&self, name: &str, object: Vec<u8>) -> Result<Stored, ObjectError> {
        let mut state = self.begin()?;
        let late = state.faults.late;
        if state.rng.chance(late) {
            state.late.push((name.to_owned(), object));
            self.clock.advance(TIMEOUT);
            return Err(timed_out());
        }
        state.objects.insert(name.to_owned(), object);
        self.end(&mut state, Stored::Written)
    }

    fn remove(&self, name: &str) -> Result<(), ObjectError> {
        let mut state = self.begin()?;
        state.objects.remove(name);
        self.end(&mut state, ())
    }
}
