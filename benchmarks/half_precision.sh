#!/usr/bin/env bash
# The runs and figures of docs/results/rounding.md.
set -euo pipefail
N="nystromformer nystromformer:n_iter=20 nystromformer:inverse=pinv nystromformer:inverse=pinv,rtol=0.01"
S="skyformer:sampler=wor skyformer:inverse=cholesky,gamma=0.01,sampler=wor skyformer:inverse=schulz,sampler=wor"
G="skyformer:inverse=schulz,sampler=wor skyformer:inverse=pinv,sampler=wor skyformer:inverse=cholesky,gamma=0.01,sampler=wor"
O="prototype wildcat performer performer:eps=1e-4 linear efficient skeinformer linformer thinformer bigbird topk"
C="$N $S wildcat performer performer:eps=1e-4 linear informer bigbird topk window snapkv h2o quest svd"
attnprobe rounding $N nystromformer-kmeans mss $S $O informer reformer kdeformer svd softmax --model minilm --text embedded \
  --n 512 --d 16,64,256 --layer 0,3,5 --formats bf16,fp16 --out minilm
attnprobe rounding $G spectral-shift svd --target gaussian --model minilm --text embedded \
  --n 512 --d 16,64,256 --layer 0,3,5 --formats bf16,fp16 --out minilm-gaussian
attnprobe rounding $C softmax --model smollm2 --text embedded \
  --n 512 --d 64 --layer 0,10,29 --formats bf16,fp16 --no-estimate --out smollm2
attnprobe rounding $N $S performer bigbird topk --model smollm2 --text embedded \
  --n 512 --d 16 --layer 0,10,29 --formats bf16 --no-estimate --out smollm2-16
attnprobe rounding $G --target gaussian --model smollm2 --text embedded \
  --n 512 --d 64 --layer 0,10,29 --formats bf16 --no-estimate --out smollm2-gaussian
attnprobe rounding $N mss $S $O --model minilm --text embedded \
  --n 2048 --d 64 --layer 0,3,5 --formats bf16 --no-estimate --out minilm-2048
attnprobe rounding $N $S performer linear --model smollm2 --text embedded \
  --n 2048 --d 64 --layer 0,10 --formats bf16 --no-estimate --out smollm2-2048
attnprobe inject --model minilm --text embedded --n 512 --d 64 --layer 0,3,5 --per-layer --arithmetic bf16,fp16 \
  --method nystromformer,nystromformer:inverse=pinv,mss,performer,linear
python docs/figures/rounding.py errors docs/figures/rounding-errors minilm smollm2
python docs/figures/rounding.py steps docs/figures/rounding-steps minilm
