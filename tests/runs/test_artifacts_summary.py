from vitral.core.config import override
from vitral.models.registry import model_config
from vitral.recipes.recipe import Recipe
from vitral.runs.artifacts import summarize_recipe


def test_the_papers_recipe_in_a_few_words() -> None:
    facts = dict(summarize_recipe(Recipe(name="paper")))
    assert facts["recipe"] == "paper"
    assert facts["model"] == "ViT, 12 layers of width 768, patches of 16x16 pixels, images of 224x224"
    assert facts["start"] == "random weights, seed 0"
    assert facts["fine-tuning"] == "full"
    assert facts["task"] == "classify, softmax loss, mixing none"
    assert facts["length"] == "300 epochs in batches of 4,096"
    assert facts["optimizer"] == "adamw, learning rate 0.003, weight decay 0.3"
    assert facts["schedule"] == "cosine, warmup 10,000 steps"


def test_other_kinds_are_told_too() -> None:
    settings = ["task=masked_patches", "length=steps", "schedule.warmup=0.05", "weights=runs/a"]
    facts = dict(summarize_recipe(override(Recipe(), settings)))
    assert facts["task"] == "masked patches, target mean_color"
    assert facts["length"] == "20,000 steps in batches of 4,096"
    assert facts["schedule"] == "cosine, warmup 5% of the run"
    assert facts["start"] == "weights of runs/a"
    resnet = Recipe(model=model_config("R50x1"))
    assert dict(summarize_recipe(resnet))["model"] == "ResNet, stages of 3, 4, 6, 3, images of 224x224"


def test_tuning_is_told_with_its_numbers() -> None:
    def told(*settings: str) -> dict[str, str]:
        return dict(summarize_recipe(override(Recipe(), settings)))

    assert told("finetune=lp_ft")["fine-tuning"] == "lp_ft"
    stages = '[{"layers": 2, "views": 3}, {"first": 8}]'
    told_stages = told("finetune=staged", f"finetune.stages={stages}")["fine-tuning"]
    assert told_stages == "staged: the head, then the last 2 layers on 3 views of each image, then all layers"
    assert told("finetune=last_layers", "finetune.count=3")["fine-tuning"] == "last 3 layers"
    assert (
        told("finetune=lora", 'finetune.modules=["qkv","mlp"]')["fine-tuning"] == "lora, rank 8, alpha 16, on qkv, mlp"
    )
    shown = told("length=images_seen", "length.images=5000", "length.max_epochs=30", "batch_size=32")["length"]
    assert shown == "5,000 images seen, in 5 to 30 epochs, in batches of 32"
