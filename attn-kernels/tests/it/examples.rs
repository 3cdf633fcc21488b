//! The examples, run.

#[path = "../../examples/own_device.rs"]
mod own_device;

#[test]
fn a_device_of_ones_own_attends() {
    if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
        return;
    }
    let out = own_device::attend().unwrap();
    assert!(out.iter().all(|x| (x - 19.5).abs() < 1e-3), "{out:?}");
}
