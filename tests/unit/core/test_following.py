"""The state of a followed folder does not depend on the order in which files are seen."""

from __future__ import annotations

import re
from typing import Any

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


#: What trainers write by default, and what lies beside it; a step is in brackets.
NAMES = """
# transformers, TRL, diffusers, PaddleNLP
checkpoint-[500] tmp-checkpoint-500 rng_state_0.pth optimizer.pt model-00001-of-00002.safetensors
# accelerate, Ray Train, Ray Train V2 (which registers its checkpoints in a file)
checkpoint_[0] checkpoint_[000003] checkpoint_2026-01-01_00-00-00.1
# Lightning, GluonTS, NeMo
epoch=3-step=[400].ckpt epoch=3-step=[400]-v1.ckpt step=[400]-epoch=3.ckpt
epoch=[00]-val_loss=0.32.ckpt net-epoch=[02]-val_loss=0.32.ckpt epoch=[2]-accuracy=1.ckpt
name--val_loss=0.32-epoch=[3].ckpt
megatron_gpt--val_loss=1.25-step=[1000]-consumed_samples=8000.0.ckpt last.ckpt last-v1.ckpt
# Keras
model.[01]-0.45.keras weights.[01]-0.45.hdf5 model.[07].weights.h5
# timm, Catalyst, Paddle's and TensorFlow's older formats
checkpoint-[3].pth.tar model_best.pth.tar model.[0001].pth model.ckpt-[1000]
model.ckpt-1000.data-00000-of-00001
# detectron2, mmengine, ultralytics
model_[0004999].pth model_final.pth epoch_[12].pth iter_[4000].pth
best_coco_bbox_mAP_epoch_[12].pth epoch[10].pt best.pt
# fairseq, fairseq2, ESPnet, WeNet, OpenNMT
checkpoint_1_[300].pt checkpoint[3].pt checkpoint_best.pt checkpoint.best_loss_4.35.pt step_[300]
[10]epoch.pth valid.acc.best.pth epoch_[1].pt model_step_[1000].pt
# DeepSpeed, Megatron, torch.distributed.checkpoint, torchtitan, torchtune, Orbax, Composer
global_step[1000] mp_rank_00_model_states.pt iter_[0005000] step-[100] epoch_[0] [1000]
1000.orbax-checkpoint-tmp-1010101 step_1000.orbax-checkpoint-tmp-1010101 ep1-ba[100]-rank0.pt
ep1-ba[100] latest-rank0.pt
# ignite
model_checkpoint_[100].pt best_model_[100]_val_acc=0.9.pt best_model_accuracy=1.pt
# nanoGPT, kohya
ckpt.pt lora-step[00000100].safetensors
# stable-baselines3, rsl_rl, rl_games, CleanRL
rl_model_[1000]_steps.zip rl_model_replay_buffer_1000_steps.pkl
rl_model_vecnormalize_1000_steps.pkl model_[100].pt last_Ant_ep_[100]_rew_12.3.pth
ppo.cleanrl_model
# XGBoost, LightGBM, CatBoost
model_[10].ubj LightGBM_model.txt.snapshot_iter_[10] experiment.cbsnapshot
# runs and logs
Nov25_12-33-44_gpu1 2026-01-31 20260131_123344 events.out.tfevents.1700000000.gpu1 version_0
resnet50 resnet-epochs=10-lr=0.1 rl-video-step-100.mp4 samples_step_100.png epoch_3.json
.epoch_3.pt.x8Gh2K
"""


def test_steps_in_names():
    words = [word for line in NAMES.splitlines() if line[:1] != "#" for word in line.split()]
    assert len(words) > 70
    for word in words:
        step = re.search(r"\[(\d+)\]", word)
        assert step_in(re.sub(r"[][]", "", word)) == (step and int(step[1])), word
