//! Launches of `paged_decode`: `Gpu::attend`, and which lanes a device takes.

use super::by_hand::assert_close;
use super::device::gpu;
use super::layer::{ATTENTION, Layer, queries};
use attn_kernels::cpu::attention::Options;
use attn_kernels::cpu::paged_decode::paged_decode;
use attn_kernels::gpu::Pass;
use attn_kernels::kernel::paged_decode::{Lanes, PagedDecodeParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::launch::{Attend, AttendError, AttendRow};
use attn_kernels::profile::DeviceProfile;

/// In one partition and in several.
#[test]
fn one_call_attends_as_the_reference_does() {
    let Some(gpu) = gpu() else { return };
    for (dtype, lens) in
        [(KvDtype::F16, &[1, 17, 0, 300][..]), (KvDtype::F32, &[2100, 40]), (KvDtype::Int8, &[33])]
    {
        let shape =
            KvShape { num_kv_heads: 2, head_dim: 64, block_size: 16, dtype, layout: KvLayout::Native };
        let layer = Layer::new(shape, lens, 4);
        let q_values = queries(lens.len(), 6 * 64, 6 * 64, 4);
        let rows: Vec<[u32; 4]> =
            (0..).zip(lens).zip(&layer.table_of).map(|((i, len), at)| [i, *len, *at, 0]).collect();
        let params = PagedDecodeParams {
            num_heads: 6,
            num_kv_heads: 2,
            q_stride: 6 * 64,
            partition_size: 1 << 31,
            scale: 0.125,
            ..PagedDecodeParams::default()
        };
        let (mut want, mut stats) = (vec![f32::NAN; q_values.len()], vec![[f32::NAN; 2]; 6 * lens.len()]);
        let (kv, options) = (layer.kv(), Options::default());
        paged_decode(&kv, &params, &q_values, &layer.tables, &rows, &mut want, &mut stats, &options);

        let attended: Vec<_> =
            rows.iter().map(|[_, keys, table, _]| AttendRow { keys: *keys, table: *table }).collect();
        let [k, v] = layer.upload(gpu).unwrap();
        let q = gpu.upload("q", &q_values).unwrap();
        let out = gpu.upload("out", &vec![f32::NAN; q.len()]).unwrap();
        let (scale, tables) = (params.scale, &layer.tables[..]);
        let attend =
            Attend { shape, num_heads: 6, scale, q: &q, k: &k, v: &v, tables, rows: &attended, out: &out };
        let mut pass = Pass::new("attend");
        gpu.attend(&mut pass, &attend).unwrap();
        let read = pass.read(&out, 0..q.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        assert_close(&format!("{shape:?}, {lens:?}"), ATTENTION, &got, &want);

        let beyond = [AttendRow { keys: u32::MAX / 2, ..attended[0] }];
        let refused = gpu.attend(&mut Pass::new("beyond"), &Attend { rows: &beyond, ..attend }).unwrap_err();
        assert!(matches!(refused, AttendError::Launch(_)), "{refused}");
        let short = gpu.buffer("short", q.len() - 1).unwrap();
        let refused = gpu.attend(&mut Pass::new("short"), &Attend { out: &short, ..attend }).unwrap_err();
        assert!(matches!(refused, AttendError::Launch(_)), "{refused}");
    }
}

#[test]
fn lanes_follow_from_heads_types_and_keys() {
    let shape =
        |dtype| KvShape { num_kv_heads: 8, head_dim: 128, block_size: 16, dtype, layout: KvLayout::Native };
    let of = |dtype, heads, keys| Lanes::of(&DeviceProfile::H200, &shape(dtype), heads, keys);
    let subgroups = Lanes::Subgroup(32);
    assert_eq!([of(KvDtype::F16, 32, 1 << 30), of(KvDtype::F16, 64, 1)], [subgroups, Lanes::Matrices]);
    assert_eq!([of(KvDtype::Int8, 32, 1 << 30), of(KvDtype::Int8, 64, 1)], [subgroups, Lanes::Matrices]);
    let fp8 = [of(KvDtype::Fp8, 32, 131_071), of(KvDtype::Fp8, 32, 131_072)];
    assert_eq!(fp8, [Lanes::Workgroup, Lanes::Matrices]);
    assert_eq!([of(KvDtype::F32, 32, 1 << 30), of(KvDtype::F32, 64, 1)], [subgroups, Lanes::Workgroup]);
    // What matrices do not serve, where they do not run, and where subgroups vary.
    let small = KvShape { block_size: 8, ..shape(KvDtype::F16) };
    assert_eq!(Lanes::of(&DeviceProfile::H200, &small, 64, 1), Lanes::Workgroup);
    let exact = DeviceProfile::H200.rounded(false);
    assert_eq!(Lanes::of(&exact, &shape(KvDtype::F16), 64, 1), Lanes::Workgroup);
    assert_eq!(Lanes::of(&exact.subgroups(16, 32), &shape(KvDtype::F16), 32, 1), Lanes::Workgroup);
}
