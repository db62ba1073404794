"""Readers of other tools' files: Hugging Face configurations, DeepSpeed JSON, accelerate YAML."""
