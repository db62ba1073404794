"""Hugging Face Trainer: one callback. ``torchrun --nproc-per-node 2 with_trainer.py``."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from vramscope.profiler.frameworks.transformers import MemoryCallback


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(256, (32,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=4))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        run_name="with-trainer",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=6,
        report_to="none",
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model, arguments, train_dataset=Tokens(), callbacks=[MemoryCallback()])
    result = trainer.train()

print(f"with-trainer: loss {result.training_loss:.3f}")
