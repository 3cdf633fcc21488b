// Query rows of one sequence, one after the other, and where their keys are.
struct Tile {
    row: u32, // first row of q, out and lse
    rows: u32,
    position: u32, // of the first row
    table: u32, // first entry of the block table
    list: u32, // query block, whose lists of selected blocks hold
    pad0: u32,
    pad1: u32,
    pad2: u32,
}
