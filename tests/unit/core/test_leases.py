"""A checkpoint is kept as long as anybody needs it."""

from tunekit.core.retention import Leases


def test_a_checkpoint_is_free_when_its_last_holder_gives_it_back():
    leases = Leases()
    assert leases.take("a", "x") is None and leases.take("b", "x") is None
    assert leases.release("a") is None and "x" in leases
    assert leases.release("b") == "x" and "x" not in leases and len(leases) == 0


def test_a_holder_that_takes_another_gives_the_first_one_back():
    leases = Leases()
    leases.take("a", "x")
    assert leases.take("a", "x") is None, "the same one again changes nothing"
    assert leases.take("a", "y") == "x"
    assert list(leases) == ["y"] and leases.held("a") == "y"


def test_giving_back_what_one_has_not_is_nothing():
    assert Leases().release("a") is None
