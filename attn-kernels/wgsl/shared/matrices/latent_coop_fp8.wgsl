// Latents of latent_fp8, eight f16 a word as matrices take them.
#import code_fp8
#import latent_coop_codes
