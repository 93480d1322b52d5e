"""A causal language model that learns to reverse a row of digits with Hugging Face's Trainer."""

import tempfile

import torch
import transformers
from ray import tune
from ray.tune.schedulers import ASHAScheduler

DIGITS, TURN = 4, 10  # a prompt: 3 1 4 1 TURN; its answer: 1 4 1 3


def prompts_and_answers(seed, count):
    shape, generator = (count, DIGITS), torch.Generator().manual_seed(seed)
    digits = torch.randint(10, shape, generator=generator)
    return torch.cat([digits, torch.full((count, 1), TURN)], 1), digits.flip(1)


def accuracy_of(model):
    """Return the share of greedily generated answers that are completely right."""
    prompts, answers = prompts_and_answers(seed=2, count=1_000)
    model.eval()
    rows = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=DIGITS,
        do_sample=False,
        pad_token_id=TURN,
    )
    return (rows[:, -DIGITS:] == answers).all(1).float().mean().item()


class Report(transformers.TrainerCallback):
    def on_save(self, args, state, control, model, **_):
        metrics = {"loss": state.log_history[-1]["loss"], "accuracy": accuracy_of(model)}
        folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def train(config):
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=11, n_positions=2 * DIGITS + 1, n_embd=config["width"], n_layer=2, n_head=2
        )
    )
    prompts, answers = prompts_and_answers(seed=1, count=4_000)
    labels = torch.cat([torch.full_like(prompts, -100), answers], 1)  # the loss only covers answers
    rows = torch.cat([prompts, answers], 1)
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            num_train_epochs=9,
            per_device_train_batch_size=50,
            learning_rate=config["lr"],
            save_strategy="epoch",
            save_total_limit=1,
            logging_strategy="epoch",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=[
            {"input_ids": row, "labels": label} for row, label in zip(rows, labels, strict=True)
        ],
        callbacks=[Report()],
    )
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            trainer.train(resume_from_checkpoint=folder)
    else:
        trainer.train()


tuner = tune.Tuner(
    train,
    param_space={"lr": tune.grid_search([0.0003, 0.003]), "width": tune.grid_search([16, 64])},
    tune_config=tune.TuneConfig(
        metric="accuracy",
        mode="max",
        scheduler=ASHAScheduler(max_t=9, grace_period=3, reduction_factor=3),
    ),
)
table = tuner.fit().get_dataframe().sort_values("accuracy", ascending=False)
print(table[["config/lr", "config/width", "training_iteration", "accuracy"]].to_string(index=False))
