"""Reading what people have: GGUF files, Hugging Face directories, their tokenizers and chat templates."""
