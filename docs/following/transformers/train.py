"""Train a causal language model to reverse a row of digits, with Hugging Face's Trainer."""

import sys

import torch
import transformers
from evals import DIGITS, prompts_and_answers

model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(
        vocab_size=11, n_positions=2 * DIGITS + 1, n_embd=64, n_layer=2, n_head=2
    )
)
prompts, answers = prompts_and_answers(seed=1, count=4_000)
labels = torch.cat([torch.full_like(prompts, -100), answers], 1)  # the loss only covers answers
rows = torch.cat([prompts, answers], 1)
trainer = transformers.Trainer(
    model,
    transformers.TrainingArguments(
        output_dir=sys.argv[1],
        num_train_epochs=6,
        per_device_train_batch_size=50,
        learning_rate=0.003,
        save_strategy="epoch",
        save_total_limit=2,
        logging_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=[
        {"input_ids": row, "labels": label} for row, label in zip(rows, labels, strict=True)
    ],
)
trainer.train()
