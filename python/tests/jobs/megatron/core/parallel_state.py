"""A stand-in with what Megatron-Core says of its layout: all ranks are one pipeline."""

from torch import distributed as dist


def get_pipeline_model_parallel_world_size():
    return dist.get_world_size()


def get_pipeline_model_parallel_rank():
    return dist.get_rank()


def get_pipeline_model_parallel_first_rank():
    return 0


def get_virtual_pipeline_model_parallel_world_size():
    return None


def get_virtual_pipeline_model_parallel_rank():
    return None
