//! Writes to a directory with several writers: one writer per block, and no reader sees part of it.

use std::time::{Duration, SystemTime};

use opendal::{Error, ErrorKind, Operator};

use crate::tier::Stored;

/// Writes `name.tmp`, which only one writer can create, and renames it to `name`. A `.tmp` older than
/// `patience` was left by a writer that died, and is replaced.
pub(super) async fn write(
    backend: &Operator,
    name: &str,
    object: Vec<u8>,
    patience: Duration,
) -> Result<Stored, Error> {
    let partial = format!("{name}.tmp");
    match create(backend, &partial, object.clone()).await {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::ConditionNotMatch => {
            if !is_abandoned(backend, &partial, patience).await? {
                return Ok(Stored::AlreadyThere);
            }
            backend.delete(&partial).await?;
            match create(backend, &partial, object).await {
                Err(error) if error.kind() == ErrorKind::ConditionNotMatch => {
                    return Ok(Stored::AlreadyThere);
                }
                created => created?,
            }
        }
        Err(error) => return Err(error),
    }
    if let Err(error) = backend.rename(&partial, name).await {
        // Best effort: what stays behind is replaced once it is old.
        let _ = backend.delete(&partial).await;
        return Err(error);
    }
    Ok(Stored::Written)
}

async fn create(backend: &Operator, partial: &str, object: Vec<u8>) -> Result<(), Error> {
    let created = backend.write_with(partial, object).if_not_exists(true).await;
    match created {
        Err(error) if error.kind() != ErrorKind::ConditionNotMatch => {
            // A disk that filled up leaves a part.
            let _ = backend.delete(partial).await;
            Err(error)
        }
        created => created.map(drop),
    }
}

async fn is_abandoned(backend: &Operator, partial: &str, patience: Duration) -> Result<bool, Error> {
    let modified = match backend.stat(partial).await {
        Ok(found) => found.last_modified().map(SystemTime::from),
        // Its writer has just finished.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let age = modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
    Ok(age.is_some_and(|age| age > patience))
}
