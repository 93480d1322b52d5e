"""A model that learns the larger of two digits, searched with Trainer.hyperparameter_search."""

import tempfile

import torch
import transformers
from ray import tune
from ray.tune.schedulers import ASHAScheduler

SETTINGS = transformers.TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    num_train_epochs=9,
    per_device_train_batch_size=50,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    logging_strategy="epoch",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)


def rows(seed, count):
    digits = torch.randint(10, (count, 2), generator=torch.Generator().manual_seed(seed))
    labels = (digits[:, 0] < digits[:, 1]).long()
    return [{"input_ids": x, "labels": y} for x, y in zip(digits, labels, strict=True)]


def model_init(trial=None):
    return transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(vocab_size=10, dim=32, hidden_dim=64, n_layers=1, n_heads=2)
    )


def metrics_of(predicted):
    hits = predicted.predictions.argmax(-1) == predicted.label_ids
    return {"accuracy": hits.mean().item()}


def space(trial):
    return {
        "learning_rate": tune.grid_search([0.0003, 0.001, 0.003, 0.01]),
        "weight_decay": tune.choice([0.0, 0.01]),
    }


trainer = transformers.Trainer(
    model_init=model_init,
    args=SETTINGS,
    train_dataset=rows(seed=1, count=4_000),
    eval_dataset=rows(seed=2, count=1_000),
    compute_metrics=metrics_of,
)
best = trainer.hyperparameter_search(
    space,
    backend="ray",
    n_trials=1,
    direction="maximize",
    compute_objective=lambda metrics: metrics["eval_accuracy"],
    scheduler=ASHAScheduler(
        metric="objective", mode="max", max_t=9, grace_period=1, reduction_factor=3
    ),
)
table = best.run_summary.dataframe("objective", "max").sort_values("objective", ascending=False)
print(table[["config/learning_rate", "training_iteration", "objective"]].to_string(index=False))
