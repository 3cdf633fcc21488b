//! Decisions of position-only policies, drawn: S sink, R recent, # chosen by score, . dropped.

use insta::assert_snapshot;
use sparse_select::{Input, Selection, Stage, build};

fn draw(spec: &str, input: &Input<'_>, sink: u32, recent: u32) -> String {
    let mut s = Selection::new();
    build(spec).unwrap().select_into(input, &mut s).unwrap();
    s.strip(0, 0).marks(sink, recent).to_string()
}

#[test]
fn full_takes_everything() {
    assert_snapshot!(draw("full:block_size=4", &Input::positions(17), 0, 0), @"#####");
    assert_snapshot!(draw("full", &Input::positions(0), 0, 0), @"");
}

#[test]
fn streaming_takes_both_ends() {
    let at =
        |blocks: usize| draw("streaming:sink=1,recent=2,block_size=4", &Input::positions(blocks * 4), 1, 2);
    assert_snapshot!(at(8), @"S.....RR");
    assert_snapshot!(at(3), @"SRR");
    assert_snapshot!(at(1), @"S");
    assert_snapshot!(draw("streaming:sink=0,recent=1,block_size=4", &Input::positions(9), 0, 1), @"..R");
}

#[test]
fn vertical_slash_takes_the_blocks_before_the_chunk() {
    let spec = "vertical-slash:block_size=4";
    assert_snapshot!(draw(spec, &Input::positions(16), 1, 2), @"S#RR");
    assert_snapshot!(draw(spec, &Input::positions(40), 1, 2), @"S.......RR");
    let prefill = Input { stage: Stage::Prefill { chunk_idx: 6 }, ..Input::positions(40) };
    assert_snapshot!(draw(spec, &prefill, 1, 0), @"S...##....");
    let first_chunk = Input { stage: Stage::Prefill { chunk_idx: 0 }, ..Input::positions(40) };
    assert_snapshot!(draw(spec, &first_chunk, 1, 0), @"S.........");
}

#[test]
fn gsa_without_history_prefers_later_blocks() {
    let spec = "gsa:block_size=4";
    assert_snapshot!(draw(spec, &Input::positions(4 * 20), 1, 2), @"S..............###RR");
    assert_snapshot!(draw(spec, &Input::positions(4 * 4), 1, 2), @"S#RR");
    assert_snapshot!(draw(spec, &Input::positions(4 * 2), 1, 2), @"SR");
    assert_snapshot!(draw(spec, &Input::positions(4 * 12), 1, 2), @"S........#RR");
}

#[test]
fn gsa_history_brings_blocks_back() {
    let mut access = [0; 20];
    (access[3], access[7], access[8]) = (4, 2, 2);
    let input = Input { access: &access, ..Input::positions(4 * 20) };
    assert_snapshot!(draw("gsa:block_size=4", &input, 1, 2), @"S..#...##.........RR");
}
