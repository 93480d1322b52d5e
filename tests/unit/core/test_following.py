"""Checkpoints of a followed folder are ordered by the steps in their names, not by when seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tunekit.following.follow import Followed
from tunekit.following.names import A_COPY, NO_STEP, TOO_LARGE, read_name


def saw(followed: Followed, step: int, *, mark: float = 1.0, **report: Any) -> None:
    for event in followed.saw("run", step, f"/run/step-{step}", report, mark) or ():
        followed.apply(event)


def test_run_is_done_if_its_last_step_is_even_though_seen_before_earlier_ones():
    followed = Followed()
    saw(followed, 20, done=True)
    saw(followed, 10)
    assert followed.done == {"run"}
    saw(followed, 30)
    assert not followed.done


#: What trainers write by default, and what lies alongside it. The step is in brackets. The other
#: names have no step: "copy:" and "none:" are logged (a copy of a checkpoint, and one whose step
#: cannot be read), "beside:" are not.
NAMES = """
# transformers, TRL, unsloth, axolotl, ms-swift, PaddleNLP: Trainer saves checkpoint-{global_step}/
# through tmp-checkpoint-{global_step}/, with one random state for each process
checkpoint-[500] beside:tmp-checkpoint-500 beside:rng_state_0.pth beside:optimizer.pt
beside:scheduler.pt
beside:model-00001-of-00002.safetensors none:model.safetensors beside:training_args.bin
beside:trainer_state.json beside:config.json beside:tokenizer.json beside:tokenizer.model
none:checkpoint-500-merged
# simpletransformers saves after each epoch as well: checkpoint-{global_step}-epoch-{epoch}/
checkpoint-[2000] checkpoint-[2000]-epoch-1
# accelerate: automatic_checkpoint_naming; custom objects and random states are parts of one
checkpoint_[0] beside:custom_checkpoint_0.pkl beside:random_states_0.pkl beside:scaler.pt
# diffusers: checkpoint-{global_step}/; kohya: {name}-{epoch:06d} and {name}-step{step:08d}
checkpoint-[1500] learned_embeds-steps-[500].safetensors
lora-[000010].safetensors lora-step[00000100].safetensors epoch-[000002].ckpt
# Ray Train (V1 counts them; V2 registers them in a file), RLlib
checkpoint_[000003] checkpoint_[000010] beside:checkpoint_2026-01-01_00-00-00.1
# Lightning: {epoch}-{step} by default; the user's template has scores; a number for a taken name;
# save_last writes a copy. Diffusion Policy, OpenFold ({epoch}-{step} without names), NeMo (-last)
epoch=3-step=[400].ckpt epoch=3-step=[400]-v1.ckpt step=[400]-epoch=3.ckpt
epoch=[00]-val_loss=0.32.ckpt net-epoch=[02]-val_loss=0.32.ckpt epoch=[2]-accuracy=1.ckpt
name--val_loss=0.32-epoch=[3].ckpt best-epoch=[3]-val_loss=0.32.ckpt copy:last.ckpt
copy:last-v1.ckpt
copy:epoch=3-step=400-last.ckpt copy:last_epoch=3.ckpt
epoch=[0050]-test_mean_score=0.930.ckpt copy:latest.ckpt 2-[1500].ckpt
megatron_gpt--val_loss=1.25-step=[1000]-consumed_samples=8000.0.ckpt
copy:megatron_gpt--val_loss=1.25-step=1000-consumed_samples=8000.0-last.ckpt
# lit-gpt, Fabric: iter-{iter:06d}-ckpt.pth or step-{step:08d}/; Jukebox; nerfstudio
iter-[000100]-ckpt.pth step-[00001000] copy:final checkpoint_step_[10001].pth.tar
step-[000010000].ckpt
# Keras: ModelCheckpoint's template
model.[01]-0.45.keras weights.[01]-0.45.hdf5 model.[07].weights.h5
weights-improvement-[10]-0.95.hdf5
cifar10_resnet29v2_model.[050].h5 mask_rcnn_coco_[0010].h5 cp-[0010].ckpt.index
# TensorFlow: a bundle is one .index, written last, with its .data; tensor2tensor, BERT, Dopamine
ckpt-[10].index beside:ckpt-10.data-00000-of-00001 beside:ckpt-10_temp beside:checkpoint
model.ckpt-[1000] model.ckpt-[1000].index beside:model.ckpt-1000.data-00000-of-00001
beside:model.ckpt-1000.meta tf_ckpt-[10].index ckpt.[10]
# timm, ConvNeXt, MAE, BEiT, Swin, DeiT, DETR, DINO, DINOv2 (a file for each rank)
checkpoint-[3].pth.tar copy:model_best.pth.tar copy:last.pth.tar checkpoint-[20].pth
copy:checkpoint-best.pth copy:checkpoint-best-ema.pth ckpt_epoch_[10].pth none:checkpoint.pth
checkpoint[0099].pth checkpoint[0010].pth model_[0001249].rank_0.pth
beside:model_0001249.rank_1.pth
# torchvision's references, Catalyst, Paddle, PaddleDetection, PaddleOCR, PaddleSeg, MXNet, GluonCV
model_[10].pth model.[0001].pth copy:model.last.pth epoch_[10].pdparams [9].pdparams
beside:9.pdopt
iter_epoch_[10].pdparams copy:best_accuracy.pdparams iter_[1000] copy:best_model
resnet50-[0010].params beside:resnet50-0010.states yolo3_darknet53_voc_[0010]_0.8123.params
copy:yolo3_darknet53_voc_best.params
# detectron2 (its last_checkpoint is a text), detectron, SlowFast, pycls, VISSL, OpenPCDet, PySOT
model_[0004999].pth copy:model_final.pth copy:last_checkpoint model_iter[9999].pkl
checkpoint_epoch_[00010].pyth model_epoch_[0010].pyth model_iteration[1000].torch
checkpoint_epoch_[10].pth checkpoint_e[10].pth
# mmengine: CheckpointHook's best_{metric}_{epoch or iter}_{N} copies the state of N
epoch_[12].pth iter_[4000].pth copy:best_coco_bbox_mAP_epoch_12.pth copy:best_mIoU_iter_1000.pth
copy:best_coco_bbox_mAP_50_epoch_12.pth copy:latest.pth
# ultralytics, YOLOv7, YOLOX, Darknet
epoch[10].pt copy:best.pt copy:last.pt epoch_[010].pt copy:best_100.pt none:init.pt
epoch_[10]_ckpt.pth copy:latest_ckpt.pth copy:last_epoch_ckpt.pth yolov4_[1000].weights
copy:yolov4_last.weights copy:yolov4_final.weights none:yolov8n.pt
# open_clip, LAVIS, fastai (with every="epoch"), SuperGradients, RF-DETR
epoch_[1].pt copy:epoch_latest.pt checkpoint_[5].pth model_[3].pth bestmodel_[3].pth
copy:ckpt_best.pth copy:checkpoint_best_total.pth
# fairseq: checkpoint_{epoch}_{updates}; fairseq2, Uni-Core
checkpoint_1_[300].pt checkpoint_1_[500].pt checkpoint[3].pt copy:checkpoint_best.pt
copy:checkpoint_last.pt copy:checkpoint.best_loss_4.35.pt step_[300] checkpoint_1_[500]-shard0.pt
beside:checkpoint_1_500-shard1.pt
# ESPnet (averages of the best; 1: snapshot.ep.N), WeNet, icefall, Kaldi, SpeechBrain (by time)
[10]epoch.pth copy:valid.acc.best.pth copy:valid.acc.ave_10best.pth
copy:valid.acc.ave_5best.till45epoch.pth snapshot.ep.[10] epoch_10_step_[1000].pt
none:avg_30.pt epoch-[10].pt checkpoint-[10000].pt copy:best-valid-loss.pt [10].mdl copy:final.mdl
none:CKPT+2021-05-05+10-00-00+00
# OpenNMT, JoeyNMT, Sockeye, Marian, Bonito, AllenNLP (its training state apart), Flair
model_step_[1000].pt [1000].ckpt params.[00010] model.iter[10000].npz weights_[10].tar
beside:optim_10.tar model_state_epoch_[10].th beside:training_state_epoch_10.th
model_state_e[10]_b0.th
copy:best-model.pt copy:final-model.pt model_epoch_[10].pt
# Coqui saves best_model_N apart; Tacotron 2, FastPitch, FastSpeech 2, F5-TTS, Fish Speech, s3prl
checkpoint_[10000].pth copy:best_model_9000.pth copy:best_model.pth checkpoint_[10000]
FastPitch_checkpoint_[10].pt [10000].pth.tar model_[1200000].pt copy:model_last.pt
step_[000001000].ckpt states-[1000].ckpt copy:dev-best.ckpt
# StyleTTS 2 (2nd is a stage), VITS (two networks of one step), RVC, CosyVoice, Amphion
epoch_2nd_[00010].pth G_[1000].pth D_[1000].pth name_e[10]_s1000.pth epoch_[10]_whole.pt
epoch-0010_step-[0100000]_loss-0.123456 beside:added_IVF123_Flat_nprobe_1_name_v2.index
# spaCy, sentence-transformers, torchtune (old: part and epoch), litgpt, Colossal-AI
copy:model-best copy:model-last [500] epoch_[0] step_[100] none:hf_model_0001_0.pt
epoch0-step[1000]
# DeepSpeed, GPT-NeoX, verl, Megatron-LM, torch.distributed.checkpoint, torchtitan, nanotron
global_step[1000] none:mp_rank_00_model_states.pt beside:mp_rank_01_model_states.pt
beside:zero_pp_rank_0_mp_rank_00_optim_states.pt global_step_[100] copy:latest iter_[0005000]
beside:latest_checkpointed_iteration.txt beside:model_optim_rng.pt step-[100] [1000]
beside:latest.txt
# Composer, LLM Foundry: ep{epoch}-ba{batch}-rank{rank}.pt; latest is a link to it
ep1-ba[100]-rank0.pt ep1-ba[100] beside:ep1-ba100-rank1.pt copy:latest-rank0.pt
beside:latest-rank0.pt.symlink
# OLMo: step{step}, and the same in one piece
step[1000] step[1000]-unsharded copy:latest-unsharded step[1000]-tokens4B
# Orbax, T5X, Flax, Levanter, MaxText, AXLearn, Paxml, EasyLM, Equinox, big_vision, brax, openpi
beside:1000.orbax-checkpoint-tmp-1010101 beside:step_1000.orbax-checkpoint-tmp-1010101
checkpoint_[1000] beside:checkpoint_1000.tmp-1589 step-[2000] step_[00001000]
checkpoint_[00001000]
streaming_train_state_[1000] streaming_params_[1000] beside:dataset_1000.pkl model_[10].eqx
[000000100000] none:checkpoint.bv-000010000
# nanoGPT writes over its file; build-nanogpt, modded-nanogpt, llm.c (a state for each rank)
none:ckpt.pt model_[05000].pt state_step[001000].pt model_[00010000].bin
beside:state_00010000_00000.bin
# pix2pix, CycleGAN, stargan, BasicSR, KAIR, DCGAN: a file for each network of one step
[10]_net_G.pth [10]_net_D.pth [1000]_net_G.pth [1000]_net_D.pth [10]_net_G_A.pth
copy:latest_net_G.pth
[10000]-G.ckpt net_g_[5000].pth copy:net_g_latest.pth beside:5000.state [5000]_G.pth
beside:5000_optimizerG.pth netG_epoch_[10].pth [010000]_nets_ema.ckpt beside:010000_optims.ckpt
# StyleGAN, EDM: kimg; guided diffusion (its ema and opt apart), DiT, lucidrains' milestones
network-snapshot-[000100].pkl network-snapshot-[0000100]-0.050.pkl
beside:training-state-0000100.pt
model[010000].pt ema_0.9999_[010000].pt beside:opt010000.pt [0050000].pt model-[10].pt
checkpoint.[10].pt
# 3D Gaussian Splatting, NeRF, torch-ngp
chkpnt[7000].pth iteration_[7000] [010000].tar ngp_ep[0010].pth
# stable-baselines3: {prefix}_{steps}_steps.zip, with the replay buffer and VecNormalize apart
rl_model_[1000]_steps.zip ppo_cartpole_[1000]_steps.zip
beside:rl_model_replay_buffer_1000_steps.pkl beside:rl_model_vecnormalize_1000_steps.pkl
copy:best_model.zip ppo_[10000].zip
# rsl_rl, skrl, rl_games (last_ begins each file: {name}_ep_{epoch}_rew_{reward}), CleanRL
model_[100].pt agent_[1000].pt copy:best_agent.pt last_Ant_ep_[100]_rew_12.3.pth
last_Ant_ep_[100]_rew__500._.pth last_X_ep_[100]_rew_5.pth none:Ant.pth beside:ppo.cleanrl_model
# sample-factory: checkpoint_{train_step}_{env_steps}; ML-Agents, Tianshou, garage, d3rlpy
checkpoint_000000978_[4005888].pth copy:best_000000950_3891200_reward_23.500.pth
beside:temp_checkpoint.pth.tmp 3DBall-[499500].pt beside:3DBall-499500.onnx checkpoint_[10].pth
itr_[100].pkl model_[1000].d3
# LeRobot, ACT, robomimic (one that is the best has that and its loss in its name)
[005000] copy:last policy_epoch_[100]_seed_0.ckpt copy:policy_best.ckpt model_epoch_[50].pth
model_epoch_[50]_best_validation_0.123.pth
# ignite, MONAI: a score after "=" is what the file is kept for
model_checkpoint_[100].pt best_model_[100]_val_acc=0.9.pt copy:best_model_accuracy=1.pt
net_epoch=[10].pt none:net_key_metric=0.9.pt copy:net_final_iteration=100.pt
# MindSpore: {prefix}-{epoch}_{step of the epoch}; DeePMD, MACE, NequIP, nnU-Net
none:resnet-10_625.ckpt model.ckpt-[1000].pt MACE_model_run-123_epoch-[10].pt ckpt[10].pth
model_ep_[050].model copy:checkpoint_final.pth copy:model_final_checkpoint.model
# Caffe, Chainer, Torch7, Horovod
net_iter_[1000].caffemodel beside:net_iter_1000.solverstate snapshot_iter_[12000]
model_iter_[1000].npz model_[10].t7 checkpoint-[10].h5
# XGBoost (JSON is not read), LightGBM, CatBoost
model_[10].ubj [0010].model beside:model_10.json LightGBM_model.txt.snapshot_iter_[10]
model_[10].txt
beside:model.txt beside:experiment.cbsnapshot beside:log_10.txt beside:checkpoint_10.txt
# steps in thousands and millions; several counts
step_[10]k step_[2]M.pt [100]k_steps.zip none:model_10k.pt none:llama-7b.pt
# times are no steps: of more than 2**53 (in ns), and of several numbers
none:model_1795819968184527900.pt none:model_20260131_123344.pt none:20260131_123344.pt
# seeds, folds and words with numbers in them are not counts
none:model_seed_42.pt none:model_fold_3.pt none:resnet50.pth none:resnet18-f37072fd.pth
model_fold_3_epoch_[10].pt
# unfinished, and downloads
beside:model_10.pt.part beside:epoch_3.pt.tmp beside:model_10.pt.crdownload
beside:.epoch_3.pt.x8Gh2K
beside:epoch_3.pt.incomplete beside:_step_3
# runs and logs
beside:Nov25_12-33-44_gpu1 beside:2026-01-31 beside:20260131_123344 beside:version_0 beside:run_3
beside:events.out.tfevents.1700000000.gpu1 beside:events.out.tfevents.1700000000.gpu-1.12.0
beside:resnet50 beside:resnet-epochs=10-lr=0.1 beside:rl-video-step-100.mp4 beside:fold_0
beside:m1
beside:samples_step_100.png beside:epoch_3.json beside:log_9 beside:README.md beside:args_10.yaml
beside:train.log beside:step1_supervised_finetuning beside:checkpoints beside:v0-20240101-120000
beside:opt-125m beside:lora-000010-state beside:data_10.npz beside:predictions_epoch_3.pkl
"""
REASONS = {"copy": A_COPY, "none": NO_STEP, "beside": ""}


def table() -> Iterator[tuple[str, int | None, str]]:
    """Yield each name, its step, and why it has none."""
    for word in (word for line in NAMES.splitlines() if line[:1] != "#" for word in line.split()):
        kind, _, name = word.partition(":")
        if kind in REASONS:
            yield name, None, REASONS[kind]
        else:
            step = re.search(r"\[(\d+)\]([kM]?)", word)
            scale = {"": 1, "k": 1000, "M": 1000_000}[step[2]]
            yield word.replace("[", "").replace("]", ""), int(step[1]) * scale, ""


def test_step_is_read_from_every_known_trainers_checkpoint_name_and_no_other():
    names = list(table())
    assert len(names) > 250
    for name, step, reason in names:
        if name == "model_1795819968184527900.pt":
            reason = TOO_LARGE
        assert read_name(name) == (step, reason), name


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("model_" + "0" * 30 + "7.pt", (7, "")),
        ("model_" + "9" * 5000 + ".pt", (None, TOO_LARGE)),
        (f"step_{2**53}", (2**53, "")),
        (f"step_{2**53 + 1}", (None, TOO_LARGE)),
    ],
    ids=["leading zeros", "5000 digits", "2**53", "above 2**53"],
)
def test_step_in_name_is_read_up_to_2_to_the_53_and_reported_as_too_large_above(name, found):
    assert read_name(name) == found
