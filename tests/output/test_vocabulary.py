"""What names of metrics say."""

from __future__ import annotations

import pytest

from headgate.output.vocabulary import is_adversarial

AGAINST = (
    "loss_g loss_d Loss_D errG g_loss d_loss gen_loss generator_loss loss_disc "
    "critic_loss disc/loss loss-gen"
)
TOGETHER = (
    "lr accuracy val_loss loss_cls loss_bbox loss_depth logloss loss_dice kld grad_norm "
    "glosses reg_loss loss_kd"
)


@pytest.mark.parametrize("other", AGAINST.split())
def test_losses_that_are_trained_against_each_other(other: str) -> None:
    assert is_adversarial("loss", ["lr", other])
    assert not is_adversarial("accuracy", [other])


def test_several_losses_of_one_model_are_not() -> None:
    assert not is_adversarial("loss", TOGETHER.split())
    assert not is_adversarial("loss", [])
