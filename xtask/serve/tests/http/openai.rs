//! OpenAI's types, in the client that most Rust programs use.

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::types::chat::{
    ChatCompletionRequestUserMessageArgs, CreateChatCompletionRequest, CreateChatCompletionRequestArgs,
    FinishReason,
};
use async_openai::types::completions::CreateCompletionRequestArgs;

use crate::fixture::{block_on, shared};

fn client() -> Client<OpenAIConfig> {
    // An error only tells that it was chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let base = format!("http://{}/v1", shared().address);
    Client::with_config(OpenAIConfig::new().with_api_base(base).with_api_key("any"))
}

fn chat() -> CreateChatCompletionRequest {
    let message = ChatCompletionRequestUserMessageArgs::default().content("hello").build().unwrap();
    let mut args = CreateChatCompletionRequestArgs::default();
    args.model("tiny").max_completion_tokens(8_u32).seed(1).messages([message.into()]).build().unwrap()
}

#[test]
fn async_openai_reads_every_reply() {
    block_on(async {
        let client = client();
        assert_eq!(client.models().list().await.unwrap().data[0].id, "tiny");
        let reply = client.chat().create(chat()).await.unwrap();
        let choice = &reply.choices[0];
        assert!(matches!(choice.finish_reason, Some(FinishReason::Length | FinishReason::Stop)));
        let whole = choice.message.content.clone().unwrap();

        let mut stream = client.chat().create_stream(chat()).await.unwrap();
        let mut streamed = String::new();
        while let Some(chunk) = std::future::poll_fn(|context| stream.as_mut().poll_next(context)).await {
            let chunk = chunk.unwrap();
            streamed.extend(chunk.choices.into_iter().filter_map(|choice| choice.delta.content));
        }
        assert_eq!(streamed, whole);

        let mut args = CreateCompletionRequestArgs::default();
        let request = args.model("tiny").prompt("the lion").max_tokens(4_u32).build().unwrap();
        let reply = client.completions().create(request).await.unwrap();
        assert_eq!(reply.usage.unwrap().completion_tokens, 4);

        let mut wrong = chat();
        wrong.temperature = Some(-1.0);
        let error = client.chat().create(wrong).await.unwrap_err().to_string();
        assert!(error.contains("temperature is -1"), "{error}");
    });
}
