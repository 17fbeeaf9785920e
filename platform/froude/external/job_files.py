"""The texts of jobs that a shell or Slurm runs in a cluster's place: one script a run, a list, arrays for sbatch."""

from __future__ import annotations

import fcntl
import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from froude.config import Trainer
from froude.external.process import GRACE_SECONDS, GUARD, STDERR, STDOUT
from froude.section import ConfigError

LIST, ARRAY = "jobs.txt", "jobs.sbatch"
JOB, NODE = "job.sh", "node.sh"
CODE, SECONDS = "exit_code", "seconds"
LOCK, HASHES = ".lock", "files.sha256"
TIMED_OUT = 124  # what timeout(1) exits with

_JOB = """\
#!/bin/sh
# Trains one run, once: with an exit code beside it, it does nothing. Written by `froude sweep --write-jobs`.
cd {folder} || exit 1
if command -v flock >/dev/null; then  # while it is running, another call of this script leaves it alone
    exec 9>{lock}
    flock -n 9 || exit 0
fi
[ ! -e {code} ] || exit 0
# The study will say that these files have trained it.
hash='shasum -a 256'
! command -v sha256sum >/dev/null || hash=sha256sum
if [ -s {hashes} ] && ! seen=$(LC_ALL=C $hash -c {hashes} 2>&1); then
    echo "a job's files must be those that it was written for, but $(printf '%s' "$seen" | grep -v ': OK$' | head -n 1)"
    echo 'restore them, or write the jobs again by `froude sweep --write-jobs`'
    exit 1
fi >&2
{exports}
FROUDE_ATTEMPT=$(($(ls | grep -c '^{code}-') + 1))
export FROUDE_ATTEMPT
past=$(printf 'metrics-%03d' $(($(ls | grep -c '^metrics-') + 1)))
for file in metrics.jsonl metrics.parquet metrics; do
    [ ! -e "$file" ] || mv "$file" "$past${{file#metrics}}"
done
# What the command has started ends with it, and with this script, however that comes.
set --
[ ! -x {python} ] || set -- {python} -I -S {guard} {grace:g}
began=$(date +%s)
"$@" {command} </dev/null >>{stdout} 2>>{stderr}
code=$?
echo $(($(date +%s) - began)) >{seconds}
echo $code >{code}.new
mv {code}.new {code}
exit $code
"""
#: What each node of several runs, by srun: one process a node, to torch.distributed and, by PET_*, to torchrun.
_NODE = """\
#!/bin/sh
RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=0 NODE_RANK=$SLURM_PROCID
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
PET_NODE_RANK=$NODE_RANK PET_NNODES=$WORLD_SIZE PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT
export RANK WORLD_SIZE LOCAL_RANK NODE_RANK MASTER_ADDR MASTER_PORT
export PET_NODE_RANK PET_NNODES PET_MASTER_ADDR PET_MASTER_PORT
exec {command}
"""
_ARRAY = """\
#!/bin/sh
#SBATCH --job-name={name}
#SBATCH --array=1-{count}
#SBATCH --output={place}/slurm-%A_%a.txt
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
{more}# One task a run. Written by `froude sweep --write-jobs`; `froude ingest` takes in what came of it.
set -- {jobs}
shift $((SLURM_ARRAY_TASK_ID - 1))
sh {place}/"$1"/{job}
"""


def write_job(
    folder: Path, words: Sequence[str], told: Mapping[str, str], trainer: Trainer, hashes: Mapping[str, str]
) -> None:
    """Write the script of a run's folder; `told` are environment variables, `hashes` the SHA-256 of files by path."""
    command = shlex.join(words)
    if trainer.nodes > 1:
        write(folder / NODE, _NODE.format(command=command))
        command = f"srun --nodes={trainer.nodes} --ntasks={trainer.nodes} --kill-on-bad-exit=1 sh {NODE}"
    if trainer.time_limit:
        command = f"timeout -k {GRACE_SECONDS:g} {trainer.time_limit:g} {command}"
    # A copy, since froude need not be installed where a job runs.
    write(folder / GUARD.name, GUARD.read_text())
    write(folder / HASHES, "".join(f"{sha256}  {path}\n" for path, sha256 in hashes.items()))
    named = {
        "folder": shlex.quote(str(folder)),
        "exports": "\n".join(f"export {name}={shlex.quote(value)}" for name, value in told.items()),
        "python": shlex.quote(sys.executable),
        "guard": GUARD.name,
        "grace": GRACE_SECONDS,
        "command": command,
        "stdout": STDOUT,
        "stderr": STDERR,
        "seconds": SECONDS,
        "code": CODE,
        "lock": LOCK,
        "hashes": HASHES,
    }
    write(folder / JOB, _JOB.format(**named))


def write_lists(place: Path, name: str, jobs: Mapping[str, Trainer]) -> list[Path]:
    """Write the plain list of jobs, by their folders below `place`, and an array for each size of reservation."""
    write(place / LIST, "".join(f"sh {shlex.quote(str(place / job / JOB))}\n" for job in jobs))
    groups: dict[tuple[int, int, int, float], list[str]] = {}
    for job, trainer in jobs.items():
        size = (trainer.nodes, trainer.cpus, trainer.gpus, trainer.time_limit)
        groups.setdefault(size, []).append(job)
    for old in place.glob("*.sbatch"):
        old.unlink()
    files = []
    for number, ((nodes, cpus, gpus, limit), own) in enumerate(sorted(groups.items()), 1):
        more = f"#SBATCH --gpus-per-node={gpus}\n" if gpus else ""
        # A minute for what is not the command.
        more += f"#SBATCH --time={math.ceil(limit / 60) + 1}\n" if limit else ""
        file = place / (ARRAY if number == 1 else f"jobs-{number}.sbatch")
        words = {"name": name, "count": len(own), "place": shlex.quote(str(place)), "job": JOB}
        size_words = {"nodes": nodes, "cpus": cpus, "more": more, "jobs": shlex.join(own)}
        write(file, _ARRAY.format(**words, **size_words))
        files.append(file)
    return files


def check_idle(folder: Path) -> None:
    """ConfigError if a job of the folder, of a run or of a trial of several, is running, as far as its lock tells."""
    for lock in (*folder.glob(LOCK), *folder.glob(f"*/{LOCK}")):
        with lock.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"a job's folder must stay while it runs, but that of {lock.parent} is to begin anew; wait until "
                    "it has ended, or end it, then repeat the command"
                ) from None


def remove(folder: Path) -> None:
    """Delete the folder of a run, or of a trial, with what came of it; ConfigError while a job of it runs."""
    check_idle(folder)
    shutil.rmtree(folder, ignore_errors=True)


def write(file: Path, text: str) -> bool:
    """Write a file whole or not at all; one that says the same is left alone. Whether it said something else."""
    try:
        if file.read_text() == text:
            return False
    except OSError:
        pass
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    os.replace(new, file)
    return True
