// Stores eight elements as codes of fp8, slots of latent_fp8.
#import code_fp8
#import latent_write_codes
