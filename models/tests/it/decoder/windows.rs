//! Sliding windows: blocks given back change nothing, and a token reaches as far as its windows carry it.

use attn_kernels::kernel::KvDtype;
use models::Reach;

use super::served::{Request, serve};
use super::tiny::family;
use super::{blocks_of, options};

#[test]
fn blocks_given_back_change_nothing() {
    for name in
        ["tiny-mistral", "tiny-gemma3", "tiny-phi3", "tiny-gpt-oss", "tiny-llama4", "tiny-deepseek-v4"]
    {
        let tiny = family(name);
        let request = Request::new(&tiny.prompts[3].ids, 60);
        let recycled = blocks_of(8, &options(KvDtype::F32));
        let kept = recycled.clone().recycle(false);
        let [recycled, kept] =
            [recycled, kept].map(|options| serve(&mut tiny.decoder(&options), &[request], 64).remove(0));
        assert_eq!(recycled.bits(), kept.bits(), "{name}");
        assert_eq!(recycled.drawn, kept.drawn, "{name}");
    }
}

/// Every layer carries a token `W - 1` positions further.
#[test]
fn a_token_reaches_over_one_window_a_layer_and_no_further() {
    let tiny = family("tiny-mistral");
    let windows: Vec<u32> = tiny
        .config
        .layers
        .iter()
        .map(|layer| match layer.reach {
            Reach::Window(window) => window - 1,
            other => panic!("{other:?}"),
        })
        .collect();
    let reach = windows.iter().sum::<u32>() as usize;
    let ids = &tiny.prompts[3].ids;
    let mut other = ids.clone();
    other[0] = (other[0] + 1) % tiny.config.vocab_size;
    let mut decoder = tiny.decoder(&options(KvDtype::F32).reproducible(true));
    let [a, b] = [ids, &other].map(|ids| serve(&mut decoder, &[Request::new(ids, 0)], 64).remove(0).bits());
    let differs =
        |row: usize| a[row * tiny.vocab()..][..tiny.vocab()] != b[row * tiny.vocab()..][..tiny.vocab()];
    assert!(differs(reach), "position {reach} does not see position 0");
    let beyond: Vec<usize> = (reach + 1..ids.len()).filter(|row| differs(*row)).collect();
    assert!(beyond.is_empty(), "positions {beyond:?} see position 0");
}
