// Slots of latents as DeepSeek V4 publishes them: codes of fp8 e4m3, the last PLAIN elements in bf16, then a byte for each 64
// codes: the exponent of their scale, a power of two, plus 127.
#import PLAIN = 64

// Words of codes; units of a slot, the last for the scales.
const CODED: u32 = (LATENT - PLAIN) / 8u;
const SLOT: u32 = CODED + PLAIN / 4u + 1u;
