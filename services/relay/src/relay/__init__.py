"""The relay: claims a job, runs it on the inference server beside it, reports the verdict, ends."""
