// Stores eight elements as codes of int8, slots of latent_int8.
#import code_int8
#import latent_write_codes
