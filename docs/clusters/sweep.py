"""A sweep on a cluster: trials run on any node, validations on dedicated nodes.

    python sweep.py STORAGE        # a folder that all nodes can reach, or s3://bucket/path

To continue the sweep, run the program again with the same storage. The exit code is 0 when the
sweep has ended, and 75 if it was interrupted (Slurm's time limit, Ctrl-C) and should be run again.
If the head is lost, Ray ends the program with another code; run it again too.
"""

import json
import sys
import time

from ray import tune
from ray.tune.schedulers import HyperBandScheduler

import tunekit

STORAGE, NAME = sys.argv[1], "digits"
#: The length of an iteration and of a validation in this example.
SECONDS = 0.5


def train(config):
    w, epoch = 0.0, 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder, open(f"{folder}/w.json") as file:
            w, epoch = json.load(file)
    tunekit.checkpoint_with(lambda folder: (folder / "w.json").write_text(json.dumps([w, epoch])))
    while True:
        time.sleep(SECONDS)
        w, epoch = w + config["lr"] * (1 - w), epoch + 1
        tune.report({"loss": (1 - w) ** 2})


def validate(checkpoint):
    time.sleep(SECONDS)
    with checkpoint.as_directory() as folder, open(f"{folder}/w.json") as file:
        return {"accuracy": 1 - abs(0.8 - json.load(file)[0])}


validation_config = tunekit.ValidationConfig(
    fn=validate,
    # Nodes for validations offer no CPUs, so that trials cannot use them.
    ray_remote_kwargs={"num_cpus": 0, "resources": {"validation": 1}},
    max_in_flight=2,  # submitted even without free resources, so that an autoscaler sees them
    max_retries=5,  # a validation whose node is lost starts again on another node
)
path = f"{STORAGE}/{NAME}"
if tunekit.Tuner.can_restore(path):
    tuner = tunekit.Tuner.restore(path, train)
else:
    tuner = tunekit.Tuner(
        train,
        param_space={"lr": tune.grid_search([0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.9])},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=HyperBandScheduler(max_t=9, reduction_factor=3),
        ),
        run_config=tune.RunConfig(
            storage_path=STORAGE,
            name=NAME,
            failure_config=tune.FailureConfig(
                max_failures=-1
            ),  # a trial whose node is lost resumes
            verbose=1,
        ),
        validation_config=validation_config,
        checkpoint_policy=tunekit.EveryIterations(1),
    )
results = tuner.fit()
if tunekit.load(path).summary()["state"] != "finished":
    sys.exit(75)
table = results.get_dataframe().sort_values("accuracy", ascending=False)
print(table[["config/lr", "training_iteration", "accuracy"]].to_string(index=False))
