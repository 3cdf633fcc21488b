//! The header of the index file, which describes the records.

use xxhash_rust::xxh3::xxh3_128;

use crate::volume::{VolumeFile, read_exact};

const MAGIC: &[u8; 16] = b"pagoda KV index\n";
const DIGEST_BYTES: usize = 16;
/// Length of a header before its description.
const START_BYTES: usize = MAGIC.len() + 4;
/// Maximum length of the description; no namespace is nearly as long.
const ABOUT_MAX: u32 = 1 << 16;
/// Number of bytes of a page; records begin on a page boundary.
const PAGE_BYTES: u64 = 4096;

/// Result of reading the beginning of a file.
pub(super) enum Header {
    /// A valid header, with the description of its index.
    Of(String),
    /// No valid header, with the reason.
    Damaged(&'static str),
}

/// Number of bytes of the header of an index, up to the first record.
pub(super) fn bytes(about: &str) -> u64 {
    ((START_BYTES + about.len() + DIGEST_BYTES) as u64).next_multiple_of(PAGE_BYTES)
}

pub(super) fn encode(about: &str) -> Vec<u8> {
    let len = u32::try_from(about.len()).expect("a description is short");
    let mut header = [&MAGIC[..], &len.to_le_bytes(), about.as_bytes()].concat();
    let digest = xxh3_128(&header);
    header.extend(digest.to_le_bytes());
    header
}

pub(super) fn read(file: &dyn VolumeFile) -> Header {
    parse(file).map_or_else(Header::Damaged, Header::Of)
}

fn parse(file: &dyn VolumeFile) -> Result<String, &'static str> {
    let mut start = [0; START_BYTES];
    read_exact(file, &mut start, 0).map_err(|_| "has no header that can be read")?;
    let (magic, len) = start.split_at(MAGIC.len());
    let len = u32::from_le_bytes(len.try_into().expect("four bytes follow the magic"));
    if magic != MAGIC || len > ABOUT_MAX {
        return Err("begins with no header");
    }
    let mut rest = vec![0; len as usize + DIGEST_BYTES];
    read_exact(file, &mut rest, START_BYTES as u64).map_err(|_| "has a header that is cut short")?;
    let (about, digest) = rest.split_at(len as usize);
    if digest != xxh3_128(&[&start, about].concat()).to_le_bytes() {
        return Err("has a damaged header");
    }
    String::from_utf8(about.to_vec()).map_err(|_| "has a header that is no text")
}
