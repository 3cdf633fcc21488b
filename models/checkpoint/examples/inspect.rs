//! Lists metadata, tensors and configuration of a checkpoint: `cargo run -p pagoda-checkpoint --example inspect -- PATH`.

use std::error::Error;

use checkpoint::{Checkpoint, WeightSource};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("the path of a checkpoint is missing")?;
    let checkpoint = Checkpoint::open(path)?;
    if let Checkpoint::Gguf(file) = &checkpoint {
        for (key, value) in file.metadata() {
            show(format_args!("{key} = {value}"));
        }
    }
    list(checkpoint.weights())?;
    show(checkpoint.config()?);
    Ok(())
}

fn list(weights: &dyn WeightSource) -> Result<(), Box<dyn Error>> {
    for name in weights.names() {
        match weights.get(name) {
            Ok(tensor) => {
                let tensor = tensor.ok_or("a listed tensor is gone")?;
                show(format_args!("{name} {} {:?}", tensor.dtype, tensor.shape));
            }
            Err(error) => show(error),
        }
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the purpose of the program")]
fn show(line: impl std::fmt::Debug) {
    println!("{line:?}");
}
