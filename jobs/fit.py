r"""Fit the laws to a study, as a Ray job; submitting it again resumes.

ray job submit --runtime-env jobs/runtime_env.yaml --working-dir . -- \
    python jobs/fit.py s3://BUCKET/studies/NAME
"""

import sys

from froude.cli.job import job

if __name__ == "__main__":
    sys.exit(job("fit"))
