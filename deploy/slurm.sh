#!/bin/bash
#SBATCH --job-name=pretrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --signal=TERM@60

# The job is called slurm-JOB.STEP on the collector: one srun, one job. What each host saw is printed at the end.
# With a task for each rank instead of torchrun it is `srun laggard run --collector … -- python train.py`.
export LAGGARD_TOKEN="$(cat ~/.config/laggard/agent-token)"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun laggard run --collector https://collector:8765 -- \
    torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \
    train.py
