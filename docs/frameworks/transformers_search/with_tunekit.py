"""A model that learns the larger of two digits, searched with tunekit."""

import dataclasses
import tempfile

import torch
import transformers
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit

SETTINGS = transformers.TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    num_train_epochs=9,
    per_device_train_batch_size=50,
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


class Report(transformers.TrainerCallback):
    def on_save(self, args, state, control, **_):
        folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        metrics = {"loss": state.log_history[-1]["loss"]}
        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def train(config):
    trainer = transformers.Trainer(
        model_init=model_init,
        args=dataclasses.replace(SETTINGS, output_dir=tempfile.mkdtemp(), **config),
        train_dataset=rows(seed=1, count=4_000),
        callbacks=[Report()],
    )
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            trainer.train(resume_from_checkpoint=folder)
    else:
        trainer.train()


def validate(checkpoint):
    with checkpoint.as_directory() as folder:
        model = transformers.DistilBertForSequenceClassification.from_pretrained(folder)
    trainer = transformers.Trainer(model, SETTINGS, compute_metrics=metrics_of)
    return trainer.evaluate(rows(seed=2, count=1_000))


tuner = tunekit.Tuner(
    train,
    param_space={
        "learning_rate": tune.grid_search([0.0003, 0.001, 0.003, 0.01]),
        "weight_decay": tune.choice([0.0, 0.01]),
    },
    tune_config=tune.TuneConfig(
        metric="eval_accuracy",
        mode="max",
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    ),
    validation_config=tunekit.ValidationConfig(fn=validate),
)
table = tuner.fit().get_dataframe().sort_values("eval_accuracy", ascending=False)
print(table[["config/learning_rate", "training_iteration", "eval_accuracy"]].to_string(index=False))
