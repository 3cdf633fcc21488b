// Scores of a tile of keys and the pages of its runs, found by comparisons with every index: the compiler does not know how often
// loops over keys turn. llvmpipe takes an array that one loop indexes from memory wherever it is used, a lane at a time, and the
// time of LLVM's pass for coroutines grows with the square of these uses. Stands in for scores_indexed.
alias Scores = array<array<f32, KEYS>, GROUP>;
alias Heads = array<u32, KEYS / RUN>;

fn put_score(scores: ptr<function, Scores>, g: u32, key: u32, score: f32) {
    for (var t = 0u; t < KEYS; t++) {
        (*scores)[g][t] = select((*scores)[g][t], score, t == key);
    }
}

fn score_at(scores: ptr<function, Scores>, g: u32, key: u32) -> f32 {
    var score = 0.0;
    for (var t = 0u; t < KEYS; t++) {
        score = select(score, (*scores)[g][t], t == key);
    }
    return score;
}

fn head_at(heads: ptr<function, Heads>, run: u32) -> u32 {
    var head = 0u;
    for (var j = 0u; j < KEYS / RUN; j++) {
        head = select(head, (*heads)[j], j == run);
    }
    return head;
}
