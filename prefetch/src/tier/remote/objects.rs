//! The storage below a remote tier: named objects, with one request at a time.

use std::error::Error;
use std::ops::Range;

use crate::tier::Stored;

/// Named objects that several engines share.
pub trait Objects: Send + Sync {
    /// Reads bytes of an object, and never more than requested.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`], [`ObjectError::Short`] for an object that ends before the range, or the failure of
    /// the service.
    fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, ObjectError>;

    /// Size of an object in bytes.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`], or the failure of the service.
    fn size(&self, name: &str) -> Result<u64, ObjectError>;

    /// Whether each of the objects exists.
    ///
    /// # Errors
    /// The failure of the service.
    fn exist(&self, names: &[String]) -> Result<Vec<bool>, ObjectError>;

    /// Writes an object so that readers never see part of it.
    ///
    /// # Errors
    /// The failure of the service; the object may have been written nevertheless.
    fn write(&self, name: &str, object: Vec<u8>) -> Result<Stored, ObjectError>;

    /// Removes an object, if it exists.
    ///
    /// # Errors
    /// The failure of the service.
    fn remove(&self, name: &str) -> Result<(), ObjectError>;

    /// Checks that the container of the objects exists, if the service does not make one by itself.
    ///
    /// # Errors
    /// [`ObjectError::NoContainer`], or the failure of the service.
    fn check_container(&self) -> Result<(), ObjectError> {
        Ok(())
    }
}

/// Why a request for objects failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ObjectError {
    /// The requested object does not exist.
    NotFound,
    /// The object has fewer bytes than requested.
    Short,
    /// The bucket, or another container of the objects, does not exist.
    NoContainer(Box<str>),
    /// The service failed or cannot be reached.
    Failed(Box<dyn Error + Send + Sync>),
}
