// Below every score; finite, so that differences of two of them stay numbers.
const LOWEST: f32 = -3.0e38;
