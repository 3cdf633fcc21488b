// Scores of a tile of keys and the pages of its runs, which loops index. See scores_compared for the choice.
alias Scores = array<array<f32, KEYS>, GROUP>;
alias Heads = array<u32, KEYS / RUN>;

fn put_score(scores: ptr<function, Scores>, g: u32, key: u32, score: f32) {
    (*scores)[g][key] = score;
}

fn score_at(scores: ptr<function, Scores>, g: u32, key: u32) -> f32 {
    return (*scores)[g][key];
}

fn head_at(heads: ptr<function, Heads>, run: u32) -> u32 {
    return (*heads)[run];
}
