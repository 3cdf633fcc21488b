// Four activations in a row, as they are.
alias Quad = vec4<f32>;
