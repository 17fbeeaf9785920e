"""nanoGPT as a trainer: starts its train.py with a run's settings, and tells what it prints.

    python nanogpt.py run.json /path/to/nanoGPT DATASET

nanoGPT (https://github.com/karpathy/nanoGPT) stays as it is; DATASET is a folder of its data/. Its schedule is a
cosine, its rates are SP's, and its weights all start with a standard deviation of 0.02.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

run = json.loads(Path(sys.argv[1]).read_text())
place, dataset = sys.argv[2:]
shape, settings, schedule = run["model"], run["optimizer"], run["schedule"]
width, depth, context = shape["width"], shape["depth"], shape["context"]
steps = run["tokens"] // run["batch"]
options = {
    "dataset": dataset,
    "out_dir": str(Path(os.environ["FROUDE_METRICS"]).resolve().with_suffix(".checkpoint")),
    "n_layer": depth,
    "n_head": width // shape["head_dim"],
    "n_embd": width,
    "block_size": context,
    "batch_size": run["batch"] // context,
    "gradient_accumulation_steps": 1,
    "max_iters": steps,
    "lr_decay_iters": steps,
    "warmup_iters": schedule["warmup_tokens"] // run["batch"],
    "learning_rate": settings["lr"],
    "min_lr": settings["lr"] * schedule["floor"],
    "beta1": settings["beta1"],
    "beta2": settings["beta2"],
    "weight_decay": settings["weight_decay"],
    "grad_clip": settings["clip"],
    "eval_interval": steps,
    "eval_iters": 100,
    "always_save_checkpoint": False,
    "device": "cuda" if run["trainer"].get("gpus") else "cpu",
    "dtype": "float32",
    "compile": False,
}
# Its seed is no setting; here it is the only word that is replaced.
code = f"exec(open('train.py').read().replace('1337 +', '{1337 + 1000 * run['seed']} +'))"
words = [f"--{key}={float(value) if key == 'weight_decay' else value}" for key, value in options.items()]
with open(os.environ["FROUDE_METRICS"], "a", buffering=1) as metrics:
    # Blocks and the last norm, without biases: its own count has the embedding, which is tied to the readout.
    params = depth * (12 * width**2 + 2 * width) + width
    print(json.dumps({"params": params}), file=metrics)
    command = [sys.executable, "-u", "-c", code, *words]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as train:
        assert train.stdout is not None
        for line in train.stdout:
            sys.stdout.write(line)
            if found := re.match(r"iter (\d+): loss (\S+),", line):
                step = int(found[1]) + 1  # counted from 0 there, and before the update
                if step <= steps:
                    print(json.dumps({"step": step, "loss": float(found[2])}), file=metrics)
            elif (found := re.match(r"step (\d+): .* val loss (\S+)", line)) and int(found[1]) == steps:
                print(json.dumps({"step": steps, "validation_loss": float(found[2])}), file=metrics)
sys.exit(train.returncode)
