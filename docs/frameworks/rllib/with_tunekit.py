"""RLlib's PPO, a class trainable, learns to balance a pole."""

from pathlib import Path

import gymnasium
import torch
from ray import tune
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.core.rl_module import RLModule
from ray.tune.schedulers import ASHAScheduler

import tunekit

RETURN = "return"
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
)


def validate(checkpoint, episodes=20):
    """Return the mean return of rollouts with the most likely actions of the policy."""
    policy_at = "learner_group/learner/rl_module/default_policy"
    with checkpoint.as_directory() as folder:
        policy = RLModule.from_checkpoint(Path(folder, policy_at))
    environment, returned = gymnasium.make("CartPole-v1"), 0.0
    for episode in range(episodes):
        seen, over = environment.reset(seed=episode)[0], False
        while not over:
            with torch.no_grad():
                likely = policy.forward_inference({"obs": torch.as_tensor(seen)[None]})
            action = likely["action_dist_inputs"].argmax().item()
            seen, reward, terminated, truncated, _ = environment.step(action)
            returned, over = returned + reward, terminated or truncated
    return {RETURN: returned / episodes}


tuner = tunekit.Tuner(
    PPO,
    param_space=algorithm,
    tune_config=tune.TuneConfig(
        metric=RETURN,
        mode="max",
        scheduler=ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2),
    ),
    run_config=tune.RunConfig(checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1)),
    validation_config=tunekit.ValidationConfig(fn=validate),
)
table = tuner.fit().get_dataframe().sort_values(RETURN, ascending=False)
print(table[["config/lr", "config/gamma", "training_iteration", RETURN]].to_string(index=False))
