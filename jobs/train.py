r"""Train the target run, elastically, as a Ray job; submitting it again resumes.

ray job submit --runtime-env jobs/runtime_env.yaml --working-dir . -- \
    python jobs/train.py s3://BUCKET/studies/NAME/recipe.toml
"""

import sys

from froude.cli.job import job

if __name__ == "__main__":
    sys.exit(job("train"))
