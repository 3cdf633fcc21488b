// Cooperative matrices of 8 x 8.
alias MatrixA = coop_mat8x8<f16, A>;
alias MatrixB = coop_mat8x8<f16, B>;
alias MatrixC = coop_mat8x8<f32, C>;
