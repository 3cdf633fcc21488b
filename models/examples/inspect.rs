//! Lists metadata, tensors and configuration of a checkpoint: `cargo run -p pagoda-models --example inspect -- [PATH]`.
//! Without a path it is the default model, which is fetched if it is not there yet.

use std::error::Error;

use models::{Checkpoint, ModelCache, SMOLLM2_135M_INSTRUCT, WeightSource};

fn main() -> Result<(), Box<dyn Error>> {
    let path = match std::env::args_os().nth(1) {
        Some(path) => path.into(),
        None => ModelCache::user()?.fetch(&SMOLLM2_135M_INSTRUCT, |progress| eprint!("\r{progress:?}  "))?,
    };
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
