// Scores alone.
const KEEPS_BOUNDS: bool = false;

fn keep_bound(at: u32, bound: f32, slack: f32) {}
