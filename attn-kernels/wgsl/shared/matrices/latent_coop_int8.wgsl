// Latents of latent_int8, eight f16 a word as matrices take them.
#import code_int8
#import latent_coop_codes
