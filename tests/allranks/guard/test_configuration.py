"""Constants are compared by name, except those that a rank may have for itself."""

import pytest

from allranks.guard.configuration import as_lines, constants, differ, may_differ

MAY_DIFFER = (
    *("rank", "local_rank", "dp_rank", "rank_offset", "is_rank_zero"),
    *("seed", "base_seed", "seed_offset", "localSeed", "_seed", "worker_id", "worker0"),
    *("device", "cuda_device", "device_id", "host", "hostname", "master_addr", "port"),
    *("is_main", "is_master", "is_main_process", "node", "node_id", "node_rank", "pid"),
    *("path", "cache_dir", "log_dir", "logdir", "filename", "save_path", "run_name"),
    *("verbose", "debug", "debug_level", "start_time", "timestamp", "elapsed"),
    *("shard", "shard_start", "start", "end", "row_begin", "first", "last", "offset"),
    *("idx", "start_idx", "last_index", "id", "run_id", "ptr", "queue_ptr", "count"),
    *("num_calls", "call_count", "step", "global_step", "epoch", "last_epoch", "iters"),
    *("seen", "num_seen", "best_acc", "best", "loss", "running_loss", "metrics"),
    *("total", "num_samples", "pipeline_stage", "role", "use_cache", "cache_size"),
)
MUST_AGREE = (
    *("logit_scale", "blend_alpha", "bidirectional", "attend_dropout", "extend_factor"),
    *("pathways", "support_size", "num_stages", "loss_weight", "grid", "temperature"),
    *("alpha", "margin", "dropout", "hidden_dim", "num_layers", "bandwidth", "slope"),
    *("timesteps", "time_dim", "loss_type", "loss_scale", "metric_dim", "log_scale"),
    *("direction", "directed", "important", "export", "ghost_norm", "profile_depth"),
    *("renamed", "catalog", "analog_gain", "firsthand", "blast", "accelerate", "macro"),
    *("totality", "frankness", "cranks", "seedling", "steps_per_token", "stepwise"),
    *(
        "vocal_dim",
        "locality",
        "mainland",
        "remainder",
        "domain",
        "recall",
        "calls_for",
    ),
    *("nodes_dim", "node_dim", "index_bits", "device_type", "start_dim"),
    *(
        "width",
        "m",
        "s",
        "t",
        "grid_size",
        "valid",
        "rapid",
        "kid_score",
        "counterweight",
    ),
)


@pytest.mark.parametrize("name", MAY_DIFFER)
def test_a_rank_may_have_it_for_itself(name):
    """Its last word, or the rank in it, says so."""
    assert may_differ(name)
    assert constants([(f"net.{name}", 3)]) == {}


@pytest.mark.parametrize("name", MUST_AGREE)
def test_a_setting_is_compared(name):
    """However many of its letters are those of a word that would exempt it."""
    assert not may_differ(name)
    texts = [as_lines(constants([(f"net.{name}", x)])) for x in (3, 5)]
    assert differ(texts, [0, 1]) == (f"net.{name}", ["3", "5"])
