"""Self-supervised tasks: learn from images without labels, one file a method.

To add a method, write `method.py` with two classes and add the first to `TaskConfig` in `vitral/tasks/__init__.py`:

1. `Method(BaseTask)`, its settings, with `kind`, `labeled = False`, `best_by` (`loss`, or `last` where a low loss does
   not mean good features) and `trains` (`masked_patches` if the pool is not trained, else `features`). `views` is how
   many views of an image it compares: with 1 it is given images (B, C, H, W), with more a tuple of (B, V, C, H, W), one
   for each size, the two large ones first in the first (`view_groups`). `check` refuses models (`check_maskable`);
   `batch_dependence` says why microbatches are refused; `collapse` lists the metrics that show a collapse.
2. The `Task` that `build` returns. It adds its parts to `self.model`, freezes those of the model that the loss does not
   reach (DDP needs a gradient for every other weight), and gives `Outcome(loss, images, metrics)` for any B, 0 too. In
   training mode it draws from the generator by `image_uniforms`, `image_rngs` (for each image) and `batch_rng` (for
   all), so that the draws do not depend on processes; in evaluation mode it draws nothing.

What runs around a step: `begin_step(done)` sets schedules, `filter_gradients()` may drop gradients, `end_step(done)`
follows the optimizer. What must survive a stop is a parameter or a persistent buffer. Whatever depends on the whole
batch uses `self.collective` (`sum`, `gather`, `places`), in submodules by deriving them from `Synchronized`.

Shared parts: `teacher` (moving average), `schedules` (momentum, temperature), `projection` (heads, batch norm over all
processes), `masking` (random, blocks, targets and context), `collapse` (metrics). `VisionTransformer.forward_kept`
encodes some patches at the cost of those. Recipes are in `vitral/recipes/selfsupervised.py`. The contract of all tasks
is in `tests/tasks/test_task_kinds.py`; a method adds a test of its first loss, a step against an oracle, and a line to
`tests/training/distributed/methods.py`.
"""
