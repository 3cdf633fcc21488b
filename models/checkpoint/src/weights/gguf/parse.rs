//! Header of a GGUF file: magic, metadata, tensor table.

use std::{borrow::Cow, collections::HashSet};

use super::{Array, Dtype, GgufError, GgufTensor, Value};

/// Limits on sizes, far above those of real files. Without limits, a header of a few bytes could make a reader
/// allocate gigabytes.
mod cap {
    pub(super) const METADATA: u64 = 1 << 16;
    pub(super) const TENSORS: u64 = 1 << 18;
    pub(super) const KEY_BYTES: u64 = (1 << 16) - 1;
    pub(super) const NAME_BYTES: u64 = 256;
    pub(super) const STRING_BYTES: u64 = 1 << 24;
    pub(super) const ARRAY: u64 = 1 << 24;
    pub(super) const NESTING: u64 = 4;
    pub(super) const DIMS: u64 = 4;
    pub(super) const ALIGNMENT: u64 = 1 << 20;
}

const DEFAULT_ALIGNMENT: u64 = 32;

pub(super) struct Header {
    pub(super) version: u32,
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) tensors: Vec<GgufTensor>,
}

pub(super) fn header(bytes: &[u8]) -> Result<Header, GgufError> {
    let mut cursor = Cursor { bytes, at: 0 };
    let magic = cursor.take("the magic")?;
    if magic != *b"GGUF" {
        return Err(GgufError::Magic { found: magic });
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => {}
        _ if matches!(version.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian { version }),
        _ => return Err(GgufError::Version { version }),
    }
    let num_tensors = cursor.count("the number of tensors", cap::TENSORS)?;
    let num_metadata = cursor.count("the number of metadata entries", cap::METADATA)?;
    let metadata = metadata(&mut cursor, num_metadata)?;
    let alignment = alignment(&metadata)?;
    let entries = entries(&mut cursor, num_tensors)?;
    let data_start = cursor.at.next_multiple_of(alignment);
    let data_bytes = bytes.len().saturating_sub(data_start);
    let tensors = entries
        .into_iter()
        .map(|entry| entry.place(data_start, data_bytes, alignment))
        .collect::<Result<_, _>>()?;
    Ok(Header { version, metadata, tensors })
}

fn metadata(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<(String, Value)>, GgufError> {
    // The smallest entry: length of the key, type, a value of one byte.
    let mut metadata = Vec::with_capacity(count.min(cursor.left() / 13));
    let mut seen = HashSet::new();
    for _ in 0..count {
        let key = cursor.string("a metadata key", cap::KEY_BYTES)?;
        if !seen.insert(key.clone()) {
            return Err(GgufError::DuplicateKey { key });
        }
        let type_id = cursor.u32("a metadata type")?;
        let value = value(cursor, &key, type_id)?;
        metadata.push((key, value));
    }
    Ok(metadata)
}

fn value(cursor: &mut Cursor<'_>, key: &str, type_id: u32) -> Result<Value, GgufError> {
    const WHAT: &str = "a metadata value";
    Ok(match type_id {
        0 => Value::Unsigned(u8::from_le_bytes(cursor.take(WHAT)?).into()),
        1 => Value::Signed(i8::from_le_bytes(cursor.take(WHAT)?).into()),
        2 => Value::Unsigned(u16::from_le_bytes(cursor.take(WHAT)?).into()),
        3 => Value::Signed(i16::from_le_bytes(cursor.take(WHAT)?).into()),
        4 => Value::Unsigned(u32::from_le_bytes(cursor.take(WHAT)?).into()),
        5 => Value::Signed(i32::from_le_bytes(cursor.take(WHAT)?).into()),
        6 => Value::Float(f32::from_le_bytes(cursor.take(WHAT)?).into()),
        7 => Value::Bool(cursor.bool()?),
        8 => Value::String(cursor.string("a metadata string", cap::STRING_BYTES)?),
        9 => Value::Array(array(cursor, key, 1)?),
        10 => Value::Unsigned(u64::from_le_bytes(cursor.take(WHAT)?)),
        11 => Value::Signed(i64::from_le_bytes(cursor.take(WHAT)?)),
        12 => Value::Float(f64::from_le_bytes(cursor.take(WHAT)?)),
        _ => return Err(GgufError::ValueType { key: key.to_owned(), type_id }),
    })
}

fn array(cursor: &mut Cursor<'_>, key: &str, depth: u64) -> Result<Array, GgufError> {
    limit("the nesting of metadata arrays", depth, cap::NESTING)?;
    let type_id = cursor.u32("the type of a metadata array")?;
    let len = cursor.count("the length of a metadata array", cap::ARRAY)?;
    Ok(match type_id {
        0 => Array::Unsigned(cursor.numbers(len, |b| u8::from_le_bytes(b).into())?),
        1 => Array::Signed(cursor.numbers(len, |b| i8::from_le_bytes(b).into())?),
        2 => Array::Unsigned(cursor.numbers(len, |b| u16::from_le_bytes(b).into())?),
        3 => Array::Signed(cursor.numbers(len, |b| i16::from_le_bytes(b).into())?),
        4 => Array::Unsigned(cursor.numbers(len, |b| u32::from_le_bytes(b).into())?),
        5 => Array::Signed(cursor.numbers(len, |b| i32::from_le_bytes(b).into())?),
        6 => Array::Float(cursor.numbers(len, |b| f32::from_le_bytes(b).into())?),
        7 => Array::Bool(cursor.elements(len, 1, Cursor::bool)?),
        8 => Array::String(
            cursor.elements(len, 8, |c| c.string("a string of a metadata array", cap::STRING_BYTES))?,
        ),
        9 => Array::Nested(cursor.elements(len, 12, |c| array(c, key, depth + 1))?),
        10 => Array::Unsigned(cursor.numbers(len, u64::from_le_bytes)?),
        11 => Array::Signed(cursor.numbers(len, i64::from_le_bytes)?),
        12 => Array::Float(cursor.numbers(len, f64::from_le_bytes)?),
        _ => return Err(GgufError::ValueType { key: key.to_owned(), type_id }),
    })
}

fn alignment(metadata: &[(String, Value)]) -> Result<usize, GgufError> {
    let value = match metadata.iter().find(|(key, _)| key == "general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some((_, Value::Unsigned(n))) => *n,
        Some((key, found)) => {
            return Err(GgufError::KeyType {
                key: key.clone(),
                want: "unsigned integer",
                found: found.to_string(),
            });
        }
    };
    match usize::try_from(value) {
        Ok(n) if n.is_power_of_two() && value <= cap::ALIGNMENT => Ok(n),
        _ => Err(GgufError::Alignment { value, limit: cap::ALIGNMENT }),
    }
}

/// A tensor table entry as stored.
struct Entry {
    name: String,
    /// Extents, innermost first.
    extents: Vec<u64>,
    type_id: u32,
    offset: u64,
}

fn entries(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<Entry>, GgufError> {
    // The smallest entry: length of the name, number of extents, type, offset.
    let mut entries = Vec::with_capacity(count.min(cursor.left() / 24));
    let mut seen = HashSet::new();
    for _ in 0..count {
        let name = cursor.string("a tensor name", cap::NAME_BYTES)?;
        if !seen.insert(name.clone()) {
            return Err(GgufError::DuplicateTensor { tensor: name });
        }
        let dims = cursor.u32("the number of extents of a tensor")?;
        limit("the number of extents of a tensor", dims.into(), cap::DIMS)?;
        let extents =
            (0..dims).map(|_| cursor.u64("the extents of a tensor")).collect::<Result<Vec<u64>, _>>()?;
        let type_id = cursor.u32("the type of a tensor")?;
        let offset = cursor.u64("the offset of a tensor")?;
        entries.push(Entry { name, extents, type_id, offset });
    }
    Ok(entries)
}

impl Entry {
    fn place(self, data_start: usize, data_bytes: usize, alignment: usize) -> Result<GgufTensor, GgufError> {
        let dtype = dtype(self.type_id);
        let size_error = || GgufError::Size { tensor: self.name.clone(), extents: self.extents.clone() };
        let shape = self
            .extents
            .iter()
            .rev()
            .map(|&extent| usize::try_from(extent).ok())
            .collect::<Option<Vec<usize>>>()
            .ok_or_else(size_error)?;
        let elems =
            shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent)).ok_or_else(size_error)?;
        if !self.offset.is_multiple_of(alignment as u64) {
            let (tensor, offset) = (self.name, self.offset);
            return Err(GgufError::Misaligned { tensor, offset, alignment: alignment as u64 });
        }
        let bytes = match dtype {
            // The size is unknown: the tensor is listed, and refused by name when it is asked for.
            None => 0,
            Some(dtype) => {
                let row = self.extents.first().copied().unwrap_or(1);
                if !row.is_multiple_of(dtype.block_elems() as u64) {
                    let (block, dtype) = (dtype.block_elems(), dtype.name());
                    return Err(GgufError::PartialBlock { tensor: self.name, row, block, dtype });
                }
                dtype.bytes_for(elems).ok_or_else(size_error)?
            }
        };
        let range = usize::try_from(self.offset)
            .ok()
            .and_then(|start| Some(start..start.checked_add(bytes)?))
            .filter(|range| range.end <= data_bytes)
            .ok_or_else(|| GgufError::OutOfFile {
                tensor: self.name.clone(),
                offset: self.offset,
                bytes: bytes as u64,
                data_bytes,
            })?;
        // A header may end less than one alignment before the end of the file, with no data at all.
        let range = if bytes == 0 { 0..0 } else { data_start + range.start..data_start + range.end };
        Ok(GgufTensor { name: self.name, shape, type_id: self.type_id, dtype, file: 0, range })
    }
}

fn dtype(type_id: u32) -> Option<Dtype> {
    Some(match type_id {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        6 => Dtype::Q5_0,
        7 => Dtype::Q5_1,
        8 => Dtype::Q8_0,
        10 => Dtype::Q2_K,
        11 => Dtype::Q3_K,
        12 => Dtype::Q4_K,
        13 => Dtype::Q5_K,
        14 => Dtype::Q6_K,
        20 => Dtype::IQ4_NL,
        23 => Dtype::IQ4_XS,
        30 => Dtype::BF16,
        39 => Dtype::MXFP4,
        19 => Dtype::IQ1_S,
        29 => Dtype::IQ1_M,
        16 => Dtype::IQ2_XXS,
        17 => Dtype::IQ2_XS,
        22 => Dtype::IQ2_S,
        18 => Dtype::IQ3_XXS,
        21 => Dtype::IQ3_S,
        34 => Dtype::TQ1_0,
        35 => Dtype::TQ2_0,
        15 => Dtype::Q8_K,
        _ => return None,
    })
}

/// Returns ggml's name of a storage type, or `ggml type N` for a number N without a type. ggml has removed some
/// types.
pub(super) fn type_name(type_id: u32) -> Cow<'static, str> {
    if let Some(dtype) = dtype(type_id) {
        return Cow::Borrowed(dtype.name());
    }
    Cow::Borrowed(match type_id {
        9 => "Q8_1",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        _ => return Cow::Owned(format!("ggml type {type_id}")),
    })
}

fn limit(what: &'static str, value: u64, limit: u64) -> Result<(), GgufError> {
    if value > limit { Err(GgufError::Limit { what, value, limit }) } else { Ok(()) }
}

/// A position in the file; every read is checked.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn slice(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let left = self.left();
        match usize::try_from(len) {
            Ok(len) if len <= left => {
                let slice = &self.bytes[self.at..self.at + len];
                self.at += len;
                Ok(slice)
            }
            _ => Err(GgufError::Truncated { what, at: self.at, need: len, left }),
        }
    }

    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let slice = self.slice(N as u64, what)?;
        Ok(slice.try_into().expect("a slice of the asked length"))
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.take(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.take(what).map(u64::from_le_bytes)
    }

    fn bool(&mut self) -> Result<bool, GgufError> {
        let at = self.at;
        match self.take("a boolean")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(GgufError::Bool { at, found }),
        }
    }

    fn count(&mut self, what: &'static str, cap: u64) -> Result<usize, GgufError> {
        let count = self.u64(what)?;
        limit(what, count, cap)?;
        Ok(usize::try_from(count).expect("every cap fits an address"))
    }

    fn string(&mut self, what: &'static str, limit: u64) -> Result<String, GgufError> {
        let len = self.u64(what)?;
        if len > limit {
            return Err(GgufError::TooLong { what, len, limit });
        }
        let at = self.at;
        let bytes = self.slice(len, what)?;
        Ok(str::from_utf8(bytes).map_err(|_| GgufError::Utf8 { what, at })?.to_owned())
    }

    /// Reads `len` elements of at least `min_bytes` bytes each. Memory is reserved for no more elements than the rest of
    /// the file can hold.
    fn elements<T>(
        &mut self,
        len: usize,
        min_bytes: usize,
        read: impl Fn(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        let mut elements = Vec::with_capacity(len.min(self.left() / min_bytes));
        for _ in 0..len {
            elements.push(read(self)?);
        }
        Ok(elements)
    }

    fn numbers<T, const N: usize>(
        &mut self,
        len: usize,
        read: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        self.elements(len, N, |cursor| cursor.take("the elements of a metadata array").map(&read))
    }
}
