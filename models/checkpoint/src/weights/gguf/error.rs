//! Defects of a GGUF file.

/// Error of reading a GGUF file or its metadata.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file ends inside a field.
    #[error("the file ends inside {what}: {need} bytes at offset {at}, but only {left} are left")]
    Truncated {
        /// The part that was being read.
        what: &'static str,
        /// Offset of the field in bytes.
        at: usize,
        /// Number of bytes that the field takes.
        need: u64,
        /// Number of bytes left in the file.
        left: usize,
    },
    /// The first four bytes are not `GGUF`.
    #[error("it starts with {found:02x?}, not with the bytes \"GGUF\"")]
    Magic {
        /// The first four bytes of the file.
        found: [u8; 4],
    },
    /// The version of the format is neither 2 nor 3.
    #[error("its version is {version}, only 2 and 3 are read")]
    Version {
        /// The version.
        version: u32,
    },
    /// The file is big-endian.
    #[error("it is big-endian (version bytes {version:#010x}), only little-endian files are read")]
    BigEndian {
        /// The version as read in little-endian order.
        version: u32,
    },
    /// A count exceeds its limit.
    #[error("{what} is {value}, the limit is {limit}")]
    Limit {
        /// The items that are counted.
        what: &'static str,
        /// The count.
        value: u64,
        /// Maximum of the count.
        limit: u64,
    },
    /// A text is longer than its limit.
    #[error("{what} is {len} bytes long, the limit is {limit}")]
    TooLong {
        /// The text.
        what: &'static str,
        /// Length of the text in bytes.
        len: u64,
        /// Maximum length in bytes.
        limit: u64,
    },
    /// Text is not UTF-8.
    #[error("{what} at offset {at} is not UTF-8")]
    Utf8 {
        /// The text.
        what: &'static str,
        /// Offset of the text in bytes.
        at: usize,
    },
    /// A boolean is neither 0 nor 1.
    #[error("a boolean at offset {at} is {found}")]
    Bool {
        /// Offset of the flag in bytes.
        at: usize,
        /// The byte.
        found: u8,
    },
    /// A metadata value has a type number that the format lacks.
    #[error("metadata {key} has the unknown value type {type_id}")]
    ValueType {
        /// The key.
        key: String,
        /// The type number.
        type_id: u32,
    },
    /// A metadata key occurs twice.
    #[error("metadata {key} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A tensor occurs twice.
    #[error("tensor {tensor} occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// The name of a split model's file is not like `NAME-00001-of-00003.gguf`, so the other files cannot be found.
    #[error("the file is one of {count}, and not called NAME-00001-of-{count:05}.gguf")]
    SplitName {
        /// Number of files of the model.
        count: u32,
    },
    /// A file has the name of a part of a split model, but is not that part.
    #[error("split.no and split.count are not {number} and {count}")]
    SplitPart {
        /// Number of the file, from 0.
        number: u32,
        /// Number of files of the model.
        count: u32,
    },
    /// The files of a split model have fewer or more tensors in all than the first file states.
    #[error("the files have {found} tensors, split.tensors.count is {want}")]
    SplitTensors {
        /// Number of tensors in all files.
        found: usize,
        /// Number of tensors that the first file states.
        want: i64,
    },
    /// `general.alignment` is not usable.
    #[error("general.alignment is {value}, not a power of two up to {limit}")]
    Alignment {
        /// The value.
        value: u64,
        /// Largest alignment that is accepted.
        limit: u64,
    },
    /// The size of a tensor overflows.
    #[error("tensor {tensor} of extents {extents:?} is too large to address")]
    Size {
        /// The tensor.
        tensor: String,
        /// Extents of the tensor, innermost first as in the file.
        extents: Vec<u64>,
    },
    /// A row of a tensor does not fill a whole number of blocks.
    #[error("tensor {tensor} has rows of {row} elements, not a multiple of the {block} of a {dtype} block")]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Innermost extent of the tensor.
        row: u64,
        /// Number of elements in a block.
        block: usize,
        /// Storage type of the tensor.
        dtype: &'static str,
    },
    /// Data of a tensor is not aligned.
    #[error("tensor {tensor} starts at {offset}, not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Offset of the tensor's data from the start of all tensor data, in bytes.
        offset: u64,
        /// The alignment in bytes.
        alignment: u64,
    },
    /// Data of a tensor lies outside the file.
    #[error(
        "tensor {tensor} takes {bytes} bytes at {offset}, but the file has {data_bytes} bytes of tensor data"
    )]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// Offset from the start of the tensor data, in bytes.
        offset: u64,
        /// Size of the tensor in bytes.
        bytes: u64,
        /// Size of all tensor data in bytes.
        data_bytes: usize,
    },
    /// A metadata key that is needed is missing.
    #[error("metadata {key} is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata value has another type than expected.
    #[error("metadata {key} is {found}, not a value of type {want}")]
    KeyType {
        /// The key.
        key: String,
        /// The type wanted.
        want: &'static str,
        /// The value found, shortened.
        found: String,
    },
}
