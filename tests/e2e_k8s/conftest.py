"""Runs only where it is asked for (`make e2e/k8s`): it needs a cluster with KEDA, and minutes."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("E2E_K8S") == "1" else ["test_*.py"]
