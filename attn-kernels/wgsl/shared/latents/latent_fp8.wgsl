// Latents in fp8 e4m3: of a slot LATENT + ROPE codes, then two f32 scales, of the latent and of the rope part. They are
// bound as vec2<u32>, eight codes, and become eight f16 a word.
#import code_fp8
#import latent_codes
