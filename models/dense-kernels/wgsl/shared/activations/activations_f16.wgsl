// Four activations in a row, rounded before.
alias Quad = vec4<f16>;
