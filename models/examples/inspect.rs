//! Lists configuration, metadata and tensors of a checkpoint: `cargo run -p models --example inspect -- PATH`.

use std::error::Error;

use models::{DecoderConfig, Gguf, Safetensors, WeightSource};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: inspect FILE.gguf | DIRECTORY")?;
    let path = std::path::PathBuf::from(path);
    if path.is_dir() {
        list(&Safetensors::open(&path)?)?;
        show(DecoderConfig::from_hf_dir(&path)?);
    } else {
        let file = Gguf::open(&path)?;
        for (key, value) in file.metadata() {
            show(format_args!("{key} = {value}"));
        }
        list(&file)?;
        show(DecoderConfig::from_gguf(&file)?);
    }
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
