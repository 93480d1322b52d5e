"""Evaluate the share of greedily generated answers that are completely right."""

import torch
import transformers

DIGITS, TURN = 4, 10  # a prompt: 3 1 4 1 TURN; its answer: 1 4 1 3


def prompts_and_answers(seed, count):
    shape, generator = (count, DIGITS), torch.Generator().manual_seed(seed)
    digits = torch.randint(10, shape, generator=generator)
    return torch.cat([digits, torch.full((count, 1), TURN)], 1), digits.flip(1)


def evaluate(checkpoint):
    with checkpoint.as_directory() as folder:
        model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    prompts, answers = prompts_and_answers(seed=2, count=1_000)
    rows = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=DIGITS,
        do_sample=False,
        pad_token_id=TURN,
    )
    return {"accuracy": (rows[:, -DIGITS:] == answers).all(1).float().mean().item()}
