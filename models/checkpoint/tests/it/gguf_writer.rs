//! The smallest writer that can also write nonsense.

/// Bytes of a GGUF file in the making.
pub(crate) struct GgufWriter {
    pub(crate) version: u32,
    pub(crate) metadata: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<Entry>,
    pub(crate) data: Vec<u8>,
    /// Alignment of the data; `general.alignment` is written apart.
    pub(crate) align: usize,
}

/// One entry of the tensor table.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) extents: Vec<u64>,
    pub(crate) type_id: u32,
    pub(crate) offset: u64,
}

/// Length and bytes.
pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Type number and value.
pub(crate) fn value(type_id: u32, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    [&type_id.to_le_bytes()[..], bytes.as_ref()].concat()
}

pub(crate) fn u32_value(n: u32) -> Vec<u8> {
    value(4, n.to_le_bytes())
}

pub(crate) fn f32_value(x: f32) -> Vec<u8> {
    value(6, x.to_le_bytes())
}

pub(crate) fn str_value(text: &str) -> Vec<u8> {
    value(8, string(text))
}

/// An array value from the type of its elements, their number and their bytes.
pub(crate) fn array_value(element: u32, len: u64, elements: impl AsRef<[u8]>) -> Vec<u8> {
    value(9, [&element.to_le_bytes()[..], &len.to_le_bytes(), elements.as_ref()].concat())
}

impl GgufWriter {
    pub(crate) fn empty() -> Self {
        Self { version: 3, metadata: vec![], tensors: vec![], data: vec![], align: 32 }
    }

    /// A file with metadata of every type, and F32, Q4_0 and unimplemented tensors.
    pub(crate) fn small() -> Self {
        let strings = ["a", "bc", "é"].map(string).concat();
        let nested = array_value(5, 2, [1_i32, -2].map(i32::to_le_bytes).concat());
        let mut writer = Self::empty();
        for (key, value) in [
            ("general.architecture", str_value("llama")),
            ("t.u8", value(0, [7])),
            ("t.i8", value(1, (-7_i8).to_le_bytes())),
            ("t.u16", value(2, 300_u16.to_le_bytes())),
            ("t.i16", value(3, (-300_i16).to_le_bytes())),
            ("t.i32", value(5, (-70_000_i32).to_le_bytes())),
            ("t.f32", f32_value(0.5)),
            ("t.bool", value(7, [1])),
            ("t.u64", value(10, u64::MAX.to_le_bytes())),
            ("t.i64", value(11, i64::MIN.to_le_bytes())),
            ("t.f64", value(12, 0.1_f64.to_le_bytes())),
            ("t.strings", array_value(8, 3, strings)),
            ("t.nested", array_value(9, 1, &nested[4..])),
        ] {
            writer.metadata.push((key.to_owned(), value));
        }
        writer.tensor("vector", &[3], 0, &[1.0_f32, -2.0, 3.5].map(f32::to_le_bytes).concat());
        writer.tensor("matrix", &[32, 2], 2, &[0x3c; 36]);
        writer.tensor("exotic", &[256], 27, &[0; 84]);
        writer
    }

    pub(crate) fn set(&mut self, key: &str, value: Vec<u8>) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    pub(crate) fn tensor(&mut self, name: &str, extents: &[u64], type_id: u32, data: &[u8]) -> &mut Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        let offset = self.data.len() as u64;
        self.tensors.push(Entry { name: name.to_owned(), extents: extents.to_vec(), type_id, offset });
        self.data.extend(data);
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            out.extend(string(key));
            out.extend(value);
        }
        for Entry { name, extents, type_id, offset } in &self.tensors {
            out.extend(string(name));
            out.extend(u32::try_from(extents.len()).unwrap().to_le_bytes());
            out.extend(extents.iter().flat_map(|n| n.to_le_bytes()));
            out.extend(type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.align), 0);
        out.extend(&self.data);
        out
    }
}
