r"""Write the recipe of the target run, or refuse with every reason, as a Ray job; submitting it again resumes.

ray job submit --runtime-env jobs/runtime_env.yaml --working-dir . -- \
    python jobs/promote.py s3://BUCKET/studies/NAME
"""

import sys

from froude.cli.job import job

if __name__ == "__main__":
    sys.exit(job("promote"))
