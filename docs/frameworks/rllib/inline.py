"""RLlib's PPO, a class trainable, learns to balance a pole."""

from ray import tune
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.tune.schedulers import ASHAScheduler

RETURN = "evaluation/env_runners/episode_return_mean"
algorithm = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=0)
    .training(
        lr=tune.grid_search([0.0003, 0.003]),
        gamma=tune.grid_search([0.9, 0.99]),
        train_batch_size_per_learner=1_000,
        minibatch_size=100,
        num_epochs=5,
    )
    .evaluation(evaluation_interval=1, evaluation_duration=20)
)

tuner = tune.Tuner(
    PPO,
    param_space=algorithm,
    tune_config=tune.TuneConfig(
        metric=RETURN,
        mode="max",
        scheduler=ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2),
    ),
    run_config=tune.RunConfig(checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1)),
)
table = tuner.fit().get_dataframe().sort_values(RETURN, ascending=False)
print(table[["config/lr", "config/gamma", "training_iteration", RETURN]].to_string(index=False))
