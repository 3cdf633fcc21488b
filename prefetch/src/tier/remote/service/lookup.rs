//! Lookups of many objects at once.

use opendal::{Error, ErrorKind, Operator};
use tokio::task::JoinSet;

/// Maximum number of requests in flight. A service answers that many in about the time of one.
const REQUESTS_MAX: usize = 32;

/// Whether each of the named objects exists.
pub(super) async fn all_exist(place: Operator, names: Vec<String>) -> Result<Vec<bool>, Error> {
    let mut exist = vec![false; names.len()];
    let mut waiting = names.into_iter().enumerate();
    let mut running = JoinSet::new();
    loop {
        while running.len() < REQUESTS_MAX
            && let Some((at, name)) = waiting.next()
        {
            let place = place.clone();
            running.spawn(async move { (at, place.exists(&name).await) });
        }
        let Some(done) = running.join_next().await else { return Ok(exist) };
        let (at, found) =
            done.map_err(|gone| Error::new(ErrorKind::Unexpected, "lookup ended").set_source(gone))?;
        exist[at] = found?;
    }
}
