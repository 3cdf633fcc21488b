//! The GGUF reader.

use std::path::{Path, PathBuf};

use checkpoint::{Array, Dtype, Gguf, GgufError, Role, Value, WeightSource};
use insta::assert_snapshot;
use proptest::prelude::*;

use super::{
    alloc, cases,
    gguf_writer::{Entry, GgufWriter, array_value, str_value, string, u32_value, value},
};

fn read(writer: &GgufWriter) -> Result<Gguf, GgufError> {
    Gguf::from_bytes(writer.bytes())
}

fn error(writer: &GgufWriter) -> String {
    read(writer).expect_err("must be refused").to_string()
}

#[test]
fn reads_every_type_of_metadata() {
    let file = read(&GgufWriter::small()).unwrap();
    let of = |key| file.value(key).unwrap().clone();
    assert_eq!(file.version(), 3);
    assert_eq!(of("t.u8"), Value::Unsigned(7));
    assert_eq!(of("t.i8"), Value::Signed(-7));
    assert_eq!(of("t.u16"), Value::Unsigned(300));
    assert_eq!(of("t.i16"), Value::Signed(-300));
    assert_eq!(of("t.i32"), Value::Signed(-70_000));
    assert_eq!(of("t.f32"), Value::Float(0.5));
    assert_eq!(of("t.bool"), Value::Bool(true));
    assert_eq!(of("t.u64"), Value::Unsigned(u64::MAX));
    assert_eq!(of("t.i64"), Value::Signed(i64::MIN));
    assert_eq!(of("t.f64"), Value::Float(0.1));
    assert_eq!(file.strings("t.strings").unwrap().unwrap(), ["a", "bc", "é"]);
    assert_eq!(of("t.nested"), Value::Array(Array::Nested(vec![Array::Signed(vec![1, -2])])));
    assert_eq!(file.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(file.u32("absent").unwrap(), None);
}

#[test]
fn reads_tensors_outermost_extent_first() {
    let file = read(&GgufWriter::small()).unwrap();
    let vector = file.get("vector").unwrap().unwrap();
    assert_eq!((vector.dtype, &vector.shape[..]), (Dtype::F32, &[3][..]));
    assert_eq!(vector.to_f32(), [1.0, -2.0, 3.5]);
    let matrix = file.get("matrix").unwrap().unwrap();
    assert_eq!((matrix.dtype, &matrix.shape[..]), (Dtype::Q4_0, &[2, 32][..]));
    assert_eq!(matrix.data.len(), 36);
    assert_eq!(file.get("absent").unwrap(), None);
}

/// Two files as llama.cpp splits a model: the first has the metadata, each its own tensors.
fn write_parts(dir: &Path, change: impl Fn(usize, &mut GgufWriter)) -> [PathBuf; 2] {
    [0, 1].map(|number| {
        let mut writer = if number == 0 { GgufWriter::small() } else { GgufWriter::empty() };
        writer.set("split.no", value(2, u16::try_from(number).unwrap().to_le_bytes()));
        writer.set("split.count", value(2, 2_u16.to_le_bytes()));
        writer.set("split.tensors.count", value(5, 4_i32.to_le_bytes()));
        if number == 1 {
            writer.tensor("other", &[2], 0, &[1.5_f32, -1.5].map(f32::to_le_bytes).concat());
        }
        change(number, &mut writer);
        let path = dir.join(format!("small-{:05}-of-00002.gguf", number + 1));
        std::fs::write(&path, writer.bytes()).unwrap();
        path
    })
}

#[test]
fn split_files_are_one_model_whichever_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    for path in write_parts(dir.path(), |_, _| {}) {
        let file = Gguf::open(&path).unwrap();
        assert_eq!(file.str("general.architecture").unwrap(), Some("llama"));
        assert_eq!(file.names(), ["vector", "matrix", "exotic", "other"]);
        assert_eq!(file.get("vector").unwrap().unwrap().to_f32(), [1.0, -2.0, 3.5]);
        assert_eq!(file.get("other").unwrap().unwrap().to_f32(), [1.5, -1.5]);
    }
}

#[test]
fn files_that_are_not_parts_of_one_model_are_named() {
    let error = |change: &dyn Fn(usize, &mut GgufWriter), rename: Option<&str>| {
        let dir = tempfile::tempdir().unwrap();
        let [mut first, second] = write_parts(dir.path(), change);
        match rename {
            Some("") => std::fs::remove_file(second).unwrap(),
            Some(name) => {
                let renamed = dir.path().join(name);
                std::fs::rename(&first, &renamed).unwrap();
                first = renamed;
            }
            None => {}
        }
        let error = Gguf::open(first).unwrap_err().to_string();
        error.replace(&dir.path().display().to_string(), "DIR")
    };
    let same = |_: usize, _: &mut GgufWriter| {};
    assert_snapshot!(error(&same, Some("model.gguf")), @"DIR/model.gguf is not a readable GGUF file: the file is one of 2, and not called NAME-00001-of-00002.gguf");
    assert_snapshot!(error(&same, Some("")), @"cannot read DIR/small-00002-of-00002.gguf: No such file or directory (os error 2)");
    let again = |_: usize, writer: &mut GgufWriter| {
        writer.set("split.no", value(2, 0_u16.to_le_bytes()));
    };
    assert_snapshot!(error(&again, None), @"DIR/small-00002-of-00002.gguf is not a readable GGUF file: split.no and split.count are not 1 and 2");
    let twice = |number: usize, writer: &mut GgufWriter| {
        if number == 1 {
            writer.tensor("vector", &[1], 0, &1.0_f32.to_le_bytes());
        }
    };
    assert_snapshot!(error(&twice, None), @"DIR/small-00002-of-00002.gguf is not a readable GGUF file: tensor vector occurs twice");
    let fewer = |_: usize, writer: &mut GgufWriter| {
        writer.set("split.tensors.count", value(5, 5_i32.to_le_bytes()));
    };
    assert_snapshot!(error(&fewer, None), @"DIR/small-00001-of-00002.gguf is not a readable GGUF file: the files have 4 tensors, split.tensors.count is 5");
}

#[test]
fn version_2_is_the_same_layout() {
    let mut writer = GgufWriter::small();
    writer.version = 2;
    assert_eq!(read(&writer).unwrap().version(), 2);
}

#[test]
fn an_unimplemented_type_is_listed_and_refused_by_name() {
    let file = read(&GgufWriter::small()).unwrap();
    assert_eq!(file.names(), ["vector", "matrix", "exotic"]);
    assert_snapshot!(file.get("exotic").unwrap_err(), @"tensor exotic is stored as I64, which is not implemented (implemented: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, TQ1_0, TQ2_0, Q8_K)");
    assert_snapshot!(file.tensor(Role::Q(3)).unwrap_err(), @"<memory> has no tensor blk.3.attn_q.weight");
}

#[test]
fn names_what_is_wrong_with_the_header() {
    let mut writer = GgufWriter::small();
    assert_snapshot!(Gguf::from_bytes(b"PK\x03\x04 and so on".to_vec()).unwrap_err(), @r#"it starts with [50, 4b, 03, 04], not with the bytes "GGUF""#);
    assert_snapshot!(Gguf::from_bytes(writer.bytes()[..30].to_vec()).unwrap_err(), @"the file ends inside a metadata key: 8 bytes at offset 24, but only 6 are left");
    writer.version = 1;
    assert_snapshot!(error(&writer), @"its version is 1, only 2 and 3 are read");
    writer.version = 3_u32.swap_bytes();
    assert_snapshot!(error(&writer), @"it is big-endian (version bytes 0x03000000), only little-endian files are read");
    let mut bytes = GgufWriter::small().bytes();
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_snapshot!(Gguf::from_bytes(bytes).unwrap_err(), @"the number of tensors is 18446744073709551615, the limit is 262144");
}

#[test]
fn names_what_is_wrong_with_metadata() {
    let with = |value| error(GgufWriter::small().set("general.x", value));
    assert_snapshot!(with(value(99, [])), @"metadata general.x has the unknown value type 99");
    assert_snapshot!(with(value(7, [2])), @"a boolean at offset 412 is 2");
    assert_snapshot!(with(value(8, u64::MAX.to_le_bytes())), @"a metadata string is 18446744073709551615 bytes long, the limit is 16777216");
    assert_snapshot!(with(value(8, [&2_u64.to_le_bytes()[..], &[0xff, 0xfe]].concat())), @"a metadata string at offset 420 is not UTF-8");
    assert_snapshot!(with(array_value(0, 1 << 40, [])), @"the length of a metadata array is 1099511627776, the limit is 16777216");
    assert_snapshot!(with(array_value(12, 1 << 24, [])), @"the file ends inside the elements of a metadata array: 8 bytes at offset 752, but only 4 are left");
    let nest = |inner: Vec<u8>| array_value(9, 1, &inner[4..]);
    assert_snapshot!(with(nest(nest(nest(nest(array_value(0, 0, [])))))), @"the nesting of metadata arrays is 5, the limit is 4");
    let mut twice = GgufWriter::small();
    twice.metadata.push(("t.u8".into(), u32_value(1)));
    assert_snapshot!(error(&twice), @"metadata t.u8 occurs twice");
    for bad in [u32_value(0), u32_value(48), u32_value(1 << 30), str_value("32")] {
        let message = error(GgufWriter::small().set("general.alignment", bad));
        assert!(message.contains("general.alignment"), "{message}");
    }
    let file = read(&GgufWriter::small()).unwrap();
    assert_snapshot!(file.u32("general.architecture").unwrap_err(), @r#"metadata general.architecture is "llama", not a value of type unsigned integer of 32 bits"#);
    assert_snapshot!(file.u32("t.u64").unwrap_err(), @"metadata t.u64 is 18446744073709551615, not a value of type unsigned integer of 32 bits");
    assert_snapshot!(file.strings("t.nested").unwrap_err(), @"metadata t.nested is an array of 1, not a value of type array of strings");
}

#[test]
fn names_what_is_wrong_with_the_tensor_table() {
    let with = |change: &dyn Fn(&mut Entry)| {
        let mut writer = GgufWriter::small();
        change(&mut writer.tensors[1]);
        error(&writer)
    };
    assert_snapshot!(with(&|t| t.name = "vector".into()), @"tensor vector occurs twice");
    assert_snapshot!(with(&|t| t.name = "x".repeat(300)), @"a tensor name is 300 bytes long, the limit is 256");
    assert_snapshot!(with(&|t| t.extents = vec![1; 5]), @"the number of extents of a tensor is 5, the limit is 4");
    assert_snapshot!(with(&|t| t.extents = vec![u64::MAX, u64::MAX]), @"tensor matrix of extents [18446744073709551615, 18446744073709551615] is too large to address");
    assert_snapshot!(with(&|t| t.extents = vec![33, 2]), @"tensor matrix has rows of 33 elements, not a multiple of the 32 of a Q4_0 block");
    assert_snapshot!(with(&|t| t.extents = vec![32, 1 << 50]), @"tensor matrix takes 20266198323167232 bytes at 32, but the file has 180 bytes of tensor data");
    assert_snapshot!(with(&|t| t.offset = 7), @"tensor matrix starts at 7, not a multiple of the alignment 32");
    assert_snapshot!(with(&|t| t.offset = !31), @"tensor matrix takes 36 bytes at 18446744073709551584, but the file has 180 bytes of tensor data");
}

#[test]
fn alignment_places_the_data() {
    let mut writer = GgufWriter::small();
    for align in [1, 64, 4096] {
        writer.align = align;
        writer.set("general.alignment", u32_value(u32::try_from(align).unwrap()));
        writer.tensors.truncate(1);
        assert_eq!(read(&writer).unwrap().get("vector").unwrap().unwrap().to_f32(), [1.0, -2.0, 3.5]);
    }
}

#[test]
fn a_missing_file_is_named() {
    let message = Gguf::open("no/such/file.gguf").unwrap_err().to_string();
    assert!(message.starts_with("cannot read no/such/file.gguf: "), "{message}");
}

#[test]
fn no_truncation_is_taken_for_a_file() {
    let bytes = GgufWriter::small().bytes();
    // The last tensor is of a type whose size the reader does not know: the file may end at its start.
    let needed = bytes.len() - 84;
    for len in 0..bytes.len() {
        let result = Gguf::from_bytes(bytes[..len].to_vec());
        assert_eq!(result.is_ok(), len >= needed, "{len} of {} bytes: {result:?}", bytes.len());
    }
}

/// Reads everything there is to read.
fn exercise(bytes: Vec<u8>) {
    let (file, largest) = alloc::largest(|| Gguf::from_bytes(bytes));
    assert!(largest < 1 << 16, "a file of 1 KiB made the reader ask for {largest} bytes");
    let Ok(file) = file else { return };
    for name in file.names() {
        if let Ok(Some(tensor)) = file.get(name) {
            assert_eq!(tensor.dtype.bytes_for(tensor.elems()), Some(tensor.data.len()));
            if tensor.elems() < 1 << 16 {
                tensor.to_f32();
            }
        }
    }
    for (_, value) in file.metadata() {
        let _ = value.to_string();
    }
    let _ = models::DecoderConfig::from_gguf(&file);
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn mutated_bytes_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
    ) {
        let mut bytes = GgufWriter::small().bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        exercise(bytes);
    }

    #[test]
    fn hostile_lengths_never_panic(at in any::<prop::sample::Index>(), length in prop_oneof![
        any::<u64>(), Just(u64::MAX), Just(1 << 63), (0_u32..64).prop_map(|shift| 1 << shift),
    ]) {
        let mut bytes = GgufWriter::small().bytes();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
        exercise(bytes);
    }

    #[test]
    fn random_bytes_after_the_magic_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise([b"GGUF\x03\0\0\0".to_vec(), tail].concat());
    }

    #[test]
    fn what_is_written_is_read(
        rows in prop::collection::vec((1_u64..5, prop::collection::vec(any::<f32>(), 4)), 1..6),
        text in "\\PC{0,40}",
    ) {
        let mut writer = GgufWriter::small();
        writer.set("t.text", value(8, string(&text)));
        for (i, (extent, row)) in rows.iter().enumerate() {
            let data = (0..*extent).flat_map(|_| row.iter().flat_map(|x| x.to_le_bytes())).collect::<Vec<_>>();
            writer.tensor(&format!("m{i}"), &[4, *extent], 0, &data);
        }
        let file = read(&writer).unwrap();
        prop_assert_eq!(file.str("t.text").unwrap(), Some(text.as_str()));
        for (i, (extent, row)) in rows.iter().enumerate() {
            let tensor = file.get(&format!("m{i}")).unwrap().unwrap();
            prop_assert_eq!(&tensor.shape, &[usize::try_from(*extent).unwrap(), 4]);
            for got in tensor.to_f32().chunks(4) {
                prop_assert!(got.iter().zip(row).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }
}

/// Images' projectors and later parts of a split model are no models.
#[test]
fn a_folder_with_one_model_is_that_model() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| std::fs::write(folder.path().join(name), GgufWriter::small().bytes()).unwrap();
    let open = || models::Checkpoint::open(folder.path());
    assert!(
        open().unwrap_err().to_string().contains("holds neither model.safetensors nor"),
        "an empty folder"
    );
    write("model.gguf");
    write("mmproj-f16.gguf");
    write("other-00002-of-00002.gguf");
    assert!(matches!(open().unwrap(), models::Checkpoint::Gguf(_)));
    write("another.gguf");
    let said = open().unwrap_err().to_string().replace(&folder.path().display().to_string(), "DIR");
    assert_eq!(said, "DIR holds several models: name one of DIR/another.gguf, DIR/model.gguf");
}
