// Cooperative matrices as a device has them: of MATRIX rows and columns, by subgroups of SUBGROUP lanes.
// Kernels divide their work by units, which are what a subgroup of 32 lanes owns. SHARE smaller subgroups share a unit, M_SHARE
// along its rows and N_SHARE along its columns; a larger one owns UNITS of them.
#import matrix = matrix_16
#import MATRIX = 16
#import SUBGROUP = 32
#import SHARE = 1
#import M_SHARE = 1
#import N_SHARE = 1
#import UNITS = 1
// Quads of a row of a matrix.
#let MATRIX_QUADS = MATRIX / 4
