//! The text form of random models: `SHAPE[:TYPE][,layers=N][,context=TOKENS][,seed=N][,alike=PERCENT]`.

mod error;

use std::fmt;
use std::path::Path;

use derive_setters::Setters;
use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::error::RandomError;
use crate::{ConfigError, DecoderConfig, Dtype};

macro_rules! shapes {
    ($($name:literal),* $(,)?) => {
        /// Name and file contents of each built-in shape.
        const SHAPES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../shapes/", $name, ".ron")))),*];
    };
}

shapes![
    "deepseek-v3-small",
    "gpt-oss-20b",
    "llama-3-70b",
    "llama-3-8b",
    "llama-3.2-1b",
    "mistral-7b",
    "phi-3.5-mini",
    "qwen2.5-14b",
    "qwen2.5-3b",
    "qwen3-30b-a3b",
    "qwen3-8b",
    "smollm2-135m",
    "tiny-llama",
    "tiny-moe",
];

/// A model of random weights: its shape, the type of its matrices, and a seed.
#[derive(Clone, Debug, PartialEq, Setters)]
#[non_exhaustive]
pub struct RandomSpec {
    /// Name or path of the shape.
    #[setters(skip)]
    pub shape: String,
    /// The model's configuration, which has no end-of-text token.
    #[setters(skip)]
    pub config: DecoderConfig,
    /// Number of the shape's first layers to keep; `None` for all.
    #[setters(strip_option)]
    pub layers: Option<u32>,
    /// Maximum number of tokens of a sequence; `None` for the shape's. Random weights have no maximum position of their own.
    #[setters(skip)]
    pub context: Option<u32>,
    /// Type of the matrices whose shape allows it.
    pub dtype: Dtype,
    /// Seed of all weights.
    pub seed: u64,
    /// Percentage of the channels, rounded down to whole blocks of the type, in which all tokens have the same embedding. Queries
    /// of neighbouring steps are then more similar, so that selections of blocks change more slowly, as on text.
    pub alike: u32,
}

/// A file of a shape.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    /// The type that the model is published in.
    dtype: String,
    /// Fields of `config.json`.
    config: Map<String, Value>,
}

impl RandomSpec {
    /// A model with all layers of `config`, f32 matrices and seed 0; `shape` names it.
    #[must_use]
    pub fn new(shape: impl Into<String>, config: DecoderConfig) -> Self {
        Self {
            shape: shape.into(),
            config,
            layers: None,
            context: None,
            dtype: Dtype::F32,
            seed: 0,
            alike: 0,
        }
    }

    /// Sets the maximum number of tokens of a sequence.
    #[must_use]
    pub fn context(mut self, tokens: u32) -> Self {
        self.config.context_length = tokens;
        self.context = Some(tokens);
        self
    }

    /// Reads `SHAPE[:TYPE][,layers=N][,context=TOKENS][,seed=N][,alike=PERCENT]`. SHAPE is a built-in name or the path of a RON
    /// file like those in `models/checkpoint/shapes`; it also gives the default of TYPE.
    ///
    /// # Errors
    /// [`RandomError`]: unknown names with the known ones, and what is wrong with a file.
    pub fn parse(text: &str) -> Result<Self, RandomError> {
        let (model, options) = text.split_once(',').unwrap_or((text, ""));
        let (shape, dtype) = match model.rsplit_once(':') {
            // A colon may be part of a path.
            Some((shape, dtype)) if !dtype.ends_with(".ron") => (shape, Some(dtype)),
            _ => (model, None),
        };
        let file = read(shape)?;
        let mut spec = Self {
            shape: shape.to_owned(),
            config: file
                .decoder()
                .map_err(|source| RandomError::Config { shape: shape.to_owned(), source })?,
            layers: None,
            context: None,
            dtype: type_of(dtype.unwrap_or(&file.dtype))?,
            seed: 0,
            alike: 0,
        };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            spec.set(option)?;
        }
        Ok(spec)
    }

    fn set(&mut self, option: &str) -> Result<(), RandomError> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let wrong = |rule| RandomError::Value { key: key.to_owned(), value: value.to_owned(), rule };
        match key {
            "layers" => {
                let layers = value.parse().map_err(|_| wrong("a whole number"))?;
                let max = self.config.num_layers;
                if !(1..=max).contains(&layers) {
                    return Err(RandomError::Layers { layers, max, shape: self.shape.clone() });
                }
                self.config.shorten(layers);
                self.layers = Some(layers);
            }
            "context" => {
                let tokens = value.parse().ok().filter(|tokens| *tokens > 0);
                *self = self.clone().context(tokens.ok_or_else(|| wrong("a number of tokens from 1 on"))?);
            }
            "seed" => self.seed = value.parse().map_err(|_| wrong("a whole number of 64 bits"))?,
            "alike" => {
                let percent = value.parse().ok().filter(|percent| *percent <= 100);
                self.alike = percent.ok_or_else(|| wrong("a whole number up to 100, of percent"))?;
            }
            _ => return Err(RandomError::Key { key: key.to_owned() }),
        }
        Ok(())
    }
}

impl Shape {
    fn decoder(&self) -> Result<DecoderConfig, ConfigError> {
        DecoderConfig::from_hf_json(&serde_json::to_string(&self.config)?, None)
    }
}

impl fmt::Display for RandomSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shape, self.dtype.name().to_lowercase())?;
        if let Some(layers) = self.layers {
            write!(f, ",layers={layers}")?;
        }
        if let Some(tokens) = self.context {
            write!(f, ",context={tokens}")?;
        }
        if self.seed != 0 {
            write!(f, ",seed={}", self.seed)?;
        }
        if self.alike != 0 {
            write!(f, ",alike={}", self.alike)?;
        }
        Ok(())
    }
}

fn read(shape: &str) -> Result<Shape, RandomError> {
    let ron = |text: &str| {
        ron::from_str(text)
            .map_err(|source| RandomError::Ron { shape: shape.to_owned(), source: Box::new(source) })
    };
    if let Some((_, text)) = SHAPES.iter().find(|(name, _)| *name == shape) {
        return ron(text);
    }
    let path = Path::new(shape);
    if path.extension().is_none_or(|extension| extension != "ron") {
        return Err(RandomError::Shape { shape: shape.to_owned() });
    }
    ron(&std::fs::read_to_string(path).map_err(|source| RandomError::Io { path: path.into(), source })?)
}

fn type_of(name: &str) -> Result<Dtype, RandomError> {
    let found = Dtype::ALL.into_iter().find(|dtype| dtype.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| RandomError::Type { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        RandomSpec::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn every_shape_is_a_model_of_its_type() {
        let drawn = SHAPES.iter().map(|(name, _)| {
            let spec = RandomSpec::parse(name).unwrap();
            format!("{spec}, {} layers", spec.config.num_layers)
        });
        insta::assert_snapshot!(drawn.collect::<Vec<_>>().join("\n"), @"
        deepseek-v3-small:bf16, 12 layers
        gpt-oss-20b:mxfp4, 24 layers
        llama-3-70b:bf16, 80 layers
        llama-3-8b:bf16, 32 layers
        llama-3.2-1b:bf16, 16 layers
        mistral-7b:bf16, 32 layers
        phi-3.5-mini:bf16, 32 layers
        qwen2.5-14b:bf16, 48 layers
        qwen2.5-3b:bf16, 36 layers
        qwen3-30b-a3b:bf16, 48 layers
        qwen3-8b:bf16, 36 layers
        smollm2-135m:bf16, 30 layers
        tiny-llama:f32, 2 layers
        tiny-moe:f32, 2 layers
        ");
    }

    #[test]
    fn tokens_are_alike_in_whole_blocks() {
        let text = "llama-3-8b:q4_k,layers=2,alike=30";
        let spec = RandomSpec::parse(text).unwrap();
        assert_eq!(spec.to_string(), text);
        let embedding = |spec: RandomSpec| {
            let weights = super::super::RandomWeights::new(spec);
            let tensor = crate::WeightSource::tensor(&weights, crate::Role::Embed).unwrap();
            // A row is 16 blocks of 256, of which 30 % are four.
            let row = tensor.data.len() / 128_256;
            assert_eq!(row, 16 * 144);
            let [a, b] = [0, 99_999].map(|token| tensor.data[token * row..][..row].to_vec());
            (0..16).filter(|block| a[block * 144..][..144] == b[block * 144..][..144]).collect::<Vec<_>>()
        };
        assert_eq!(embedding(spec.clone()), [0, 1, 2, 3]);
        assert_eq!(embedding(spec.alike(0)), [0; 0]);
        insta::assert_snapshot!(refused("tiny-llama,alike=101"), @"alike=101 is not a whole number up to 100, of percent");
    }

    /// Checks bytes against the published numbers of parameters, such as 8.03 and 30.5 billion.
    #[test]
    fn sizes_are_those_of_the_models() {
        let megabytes = |text: &str| {
            let bytes = crate::RandomWeights::new(RandomSpec::parse(text).unwrap()).bytes();
            format!("{text} {} MB", bytes / 1_000_000)
        };
        let sizes = [
            "llama-3-8b:q4_k",
            "llama-3-8b:f16",
            "llama-3-70b:q4_k",
            "qwen3-8b",
            "mistral-7b",
            "smollm2-135m",
            "llama-3.2-1b",
            "qwen2.5-3b",
            "phi-3.5-mini",
            "qwen2.5-14b",
        ];
        insta::assert_snapshot!(sizes.map(megabytes).join("\n"), @"
        llama-3-8b:q4_k 4517 MB
        llama-3-8b:f16 16061 MB
        llama-3-70b:q4_k 39690 MB
        qwen3-8b 16382 MB
        mistral-7b 14483 MB
        smollm2-135m 269 MB
        llama-3.2-1b 2471 MB
        qwen2.5-3b 6172 MB
        phi-3.5-mini 7642 MB
        qwen2.5-14b 29541 MB
        ");
        let experts = ["qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3-small"];
        insta::assert_snapshot!(experts.map(megabytes).join("\n"), @"
        qwen3-30b-a3b 61089 MB
        gpt-oss-20b 12096 MB
        deepseek-v3-small 3425 MB
        ");
    }

    #[test]
    fn options_are_read() {
        let spec = RandomSpec::parse("llama-3-8b:Q4_K,layers=2,seed=7").unwrap();
        assert_eq!((spec.dtype, spec.config.num_layers, spec.seed), (Dtype::Q4_K, 2, 7));
        assert_eq!(spec.config.layers.len(), 2);
        assert_eq!(RandomSpec::parse(&spec.to_string()).unwrap(), spec);
    }

    #[test]
    fn a_file_is_a_shape() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a:b.ron");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        let text = include_str!("../../../shapes/tiny-llama.ron");
        let path = path.to_str().unwrap();
        write(text);
        assert_eq!(RandomSpec::parse(path).unwrap().dtype, Dtype::F32);
        assert_eq!(RandomSpec::parse(&format!("{path}:q8_0")).unwrap().dtype, Dtype::Q8_0);
        let told = |text: &str| {
            write(text);
            refused(path).replace(path, "a.ron")
        };
        let refusals = [
            told(&text.replace("dtype", "type")),
            told(&text.replace("llama\"", "alpaca\"")),
            told(&text.replace("f32", "f8")),
        ];
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        shape a.ron is not readable: 3:5-3:9: Unexpected field named `type` in `Shape`, expected either `dtype` or `config` instead
        shape a.ron: model family "alpaca" is not implemented (implemented: llama, mistral, ministral, ministral3, qwen2, qwen3, qwen3_moe, gemma2, gemma3_text, phi3, smollm3, granite, olmo2, glm4, gpt_oss, llama4_text, nsa, deepseek_v2, deepseek_v3, deepseek_v32, deepseek_v4)
        unknown type "f8"; types are f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 f8_e4m3
        "#);
    }

    #[test]
    fn refusals_name_what_there_is() {
        let texts = [
            "llama-3-9b",
            "llama-3-8b:q9_k",
            "llama-3-8b:q4_k,depth=2",
            "llama-3-8b,layers=two",
            "llama-3-8b,layers=33",
            "llama-3-8b,layers=0",
            "none.ron",
            "",
        ];
        insta::assert_snapshot!(texts.map(refused).join("\n"), @r#"
        unknown shape "llama-3-9b"; shapes are deepseek-v3-small gpt-oss-20b llama-3-70b llama-3-8b llama-3.2-1b mistral-7b phi-3.5-mini qwen2.5-14b qwen2.5-3b qwen3-30b-a3b qwen3-8b smollm2-135m tiny-llama tiny-moe, and RON files by path
        unknown type "q9_k"; types are f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 f8_e4m3
        unknown key "depth"; keys are layers context seed alike
        layers=two is not a whole number
        layers=33: llama-3-8b has 1 to 32
        layers=0: llama-3-8b has 1 to 32
        cannot read none.ron: No such file or directory (os error 2)
        unknown shape ""; shapes are deepseek-v3-small gpt-oss-20b llama-3-70b llama-3-8b llama-3.2-1b mistral-7b phi-3.5-mini qwen2.5-14b qwen2.5-3b qwen3-30b-a3b qwen3-8b smollm2-135m tiny-llama tiny-moe, and RON files by path
        "#);
    }
}
