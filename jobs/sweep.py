r"""Run the proxies of a search space, as a Ray job; submitting it again resumes.

ray job submit --runtime-env jobs/runtime_env.yaml --working-dir . -- \
    python jobs/sweep.py search_spaces/quickstart.py --out s3://BUCKET/studies/NAME
"""

import sys

from froude.cli.job import job

if __name__ == "__main__":
    sys.exit(job("sweep"))
