"""Keys of a DeepSpeed configuration: where they are kept, and which have no part in memory."""

from __future__ import annotations

BUCKETS = {
    "reduce_bucket_elements": ("reduce_bucket_size",),
    "allgather_bucket_elements": ("allgather_bucket_size",),
    "prefetch_bucket_elements": ("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
    "persistence_threshold": (
        "stage3_param_persistence_threshold",
        "param_persistence_threshold",
    ),
    "max_live_parameters": ("stage3_max_live_parameters", "max_live_parameters"),
    "max_reuse_distance": ("stage3_max_reuse_distance", "max_reuse_distance"),
    "sub_group_elements": ("sub_group_size",),
    "hpz_partition": ("zero_hpz_partition_size",),
}
"""Fields of a scenario and the spellings of the keys that they are read from."""

IGNORED = frozenset(
    {
        "scheduler",
        "gradient_clipping",
        "steps_per_print",
        "wall_clock_breakdown",
        "prescale_gradients",
        "gradient_predivide_factor",
        "communication_data_type",
        "seq_parallel_communication_data_type",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "dump_state",
        "memory_breakdown",
        "flops_profiler",
        "comms_logger",
        "tensorboard",
        "wandb",
        "csv_monitor",
        "checkpoint",
        "aio",
        "disable_allgather",
        "fp32_allreduce",
        "sparse_gradients",
        "load_universal_checkpoint",
    }
)
"""Keys that change nothing in the memory of a step."""
ZERO_IGNORED = frozenset(
    {
        "reduce_scatter",
        "allgather_partitions",
        "load_from_fp32_weights",
        "elastic_checkpoint",
        "round_robin_gradients",
        "ignore_unused_parameters",
        "gather_16bit_weights_on_model_save",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
        "stage3_model_persistence_threshold",
        "model_persistence_threshold",
        "legacy_stage1",
        "log_trace_cache_warnings",
        "stage3_module_granularity_threshold",
        "memory_efficient_linear",
        "override_module_apply",
        "use_all_reduce_for_fetch_params",
    }
)
NOT_MODELLED = {
    "sparse_attention": "sparse attention kernels",
    "compile": "compiled graphs keep other tensors",
    "hybrid_engine": "the hybrid engine's inference copies",
    "elasticity": "elastic batch sizes",
    "compression_training": "compression",
    "data_efficiency": "curriculum and random layer dropping",
    "curriculum_learning": "the sequence grows in training",
    "progressive_layer_drop": "layers are dropped",
    "autotuning": "values are searched for",
    "eigenvalue": "eigenvalue estimation",
}
ZERO_NOT_MODELLED = (
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights",
    "mics_hierarchical_params_gather",
    "zenflow",
)
