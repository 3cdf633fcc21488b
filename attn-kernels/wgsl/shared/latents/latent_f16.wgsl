// Latents in f16.
#import latent_halves
#import latent_plain
