"""What is known of a followed folder, whatever order it is seen in."""

from __future__ import annotations

from typing import Any

import pytest

from tunekit.following.folder import step_in
from tunekit.following.follow import Followed


def saw(followed: Followed, step: int, *, mark: float = 1.0, **report: Any) -> None:
    for event in followed.saw("run", step, f"/run/step-{step}", report, mark) or ():
        followed.apply(event)


def test_a_run_has_ended_by_its_last_step_though_that_is_seen_first():
    followed = Followed()
    saw(followed, 20, done=True)
    saw(followed, 10)
    assert followed.done == {"run"}
    saw(followed, 30)
    assert not followed.done


# What trainers write by default, and what lies beside it.
NAMES = [
    # transformers, TRL, diffusers, PaddleNLP
    ("checkpoint-500", 500),
    ("tmp-checkpoint-500", None),
    ("rng_state_0.pth", None),
    ("optimizer.pt", None),
    ("model-00001-of-00002.safetensors", None),
    # accelerate, Ray Train, Ray Train V2 (which registers its checkpoints in a file)
    ("checkpoint_0", 0),
    ("checkpoint_000003", 3),
    ("checkpoint_2026-01-01_00-00-00.1", None),
    # Lightning, GluonTS, NeMo
    ("epoch=3-step=400.ckpt", 400),
    ("epoch=3-step=400-v1.ckpt", 400),
    ("step=400-epoch=3.ckpt", 400),
    ("epoch=00-val_loss=0.32.ckpt", 0),
    ("net-epoch=02-val_loss=0.32.ckpt", 2),
    ("epoch=2-accuracy=1.ckpt", 2),
    ("name--val_loss=0.32-epoch=3.ckpt", 3),
    ("megatron_gpt--val_loss=1.25-step=1000-consumed_samples=8000.0.ckpt", 1000),
    ("last.ckpt", None),
    ("last-v1.ckpt", None),
    # Keras
    ("model.01-0.45.keras", 1),
    ("weights.01-0.45.hdf5", 1),
    ("model.07.weights.h5", 7),
    # timm, Catalyst, Paddle's and TensorFlow's older formats
    ("checkpoint-3.pth.tar", 3),
    ("model_best.pth.tar", None),
    ("model.0001.pth", 1),
    ("model.ckpt-1000", 1000),
    ("model.ckpt-1000.data-00000-of-00001", None),
    # detectron2, mmengine, ultralytics
    ("model_0004999.pth", 4999),
    ("model_final.pth", None),
    ("epoch_12.pth", 12),
    ("iter_4000.pth", 4000),
    ("best_coco_bbox_mAP_epoch_12.pth", 12),
    ("epoch10.pt", 10),
    ("best.pt", None),
    # fairseq, fairseq2, ESPnet, WeNet, OpenNMT
    ("checkpoint_1_300.pt", 300),
    ("checkpoint3.pt", 3),
    ("checkpoint_best.pt", None),
    ("checkpoint.best_loss_4.35.pt", None),
    ("step_300", 300),
    ("10epoch.pth", 10),
    ("valid.acc.best.pth", None),
    ("epoch_1.pt", 1),
    ("model_step_1000.pt", 1000),
    # DeepSpeed, Megatron, torch.distributed.checkpoint and torchtitan, torchtune, Orbax, Composer
    ("global_step1000", 1000),
    ("mp_rank_00_model_states.pt", None),
    ("iter_0005000", 5000),
    ("step-100", 100),
    ("epoch_0", 0),
    ("1000", 1000),
    ("1000.orbax-checkpoint-tmp-1010101", None),
    ("step_1000.orbax-checkpoint-tmp-1010101", None),
    ("ep1-ba100-rank0.pt", 100),
    ("ep1-ba100", 100),
    ("latest-rank0.pt", None),
    # ignite
    ("model_checkpoint_100.pt", 100),
    ("best_model_100_val_acc=0.9.pt", 100),
    ("best_model_accuracy=1.pt", None),
    # nanoGPT, kohya
    ("ckpt.pt", None),
    ("lora-step00000100.safetensors", 100),
    # stable-baselines3, rsl_rl, rl_games, CleanRL
    ("rl_model_1000_steps.zip", 1000),
    ("rl_model_replay_buffer_1000_steps.pkl", None),
    ("rl_model_vecnormalize_1000_steps.pkl", None),
    ("model_100.pt", 100),
    ("last_Ant_ep_100_rew_12.3.pth", 100),
    ("ppo.cleanrl_model", None),
    # XGBoost, LightGBM, CatBoost
    ("model_10.ubj", 10),
    ("LightGBM_model.txt.snapshot_iter_10", 10),
    ("experiment.cbsnapshot", None),
    # runs and logs
    ("Nov25_12-33-44_gpu1", None),
    ("2026-01-31", None),
    ("20260131_123344", None),
    ("events.out.tfevents.1700000000.gpu1", None),
    ("version_0", None),
    ("resnet50", None),
    ("resnet-epochs=10-lr=0.1", None),
    ("rl-video-step-100.mp4", None),
    ("samples_step_100.png", None),
    ("epoch_3.json", None),
    (".epoch_3.pt.x8Gh2K", None),
]


@pytest.mark.parametrize(("name", "step"), NAMES, ids=[name for name, _ in NAMES])
def test_steps_in_names(name, step):
    assert step_in(name) == step
