"""What the ranks' loaders say before an epoch: equal lengths, shares that are apart."""

import torch.distributed as dist

from .exchange import Exchange, GuardError, names

LENGTH = (
    "The ranks must make equally many steps: a rank that has no batch left leaves the "
    "others in a collective, or pairs with it another one."
)
SHARES = "Shares of one order are apart only if all ranks draw that order alike."
ORDER = (
    "Every rank must hold the same samples in the same order: sort what listdir or a "
    "set gives, and take no statistics of a rank's own part. If it is already cut by "
    "rank, it needs no DistributedSampler."
)


class Samplers:
    """Judges the facts of ``loaders`` of all ranks.

    Args:
        shares: see ``DataChecks``.
    """

    def __init__(self, exchange: Exchange, shares: list[int] | None):
        self.exchange, self.shares = exchange, shares
        self.teams = len(set(shares or ()))  # 0: nothing is known
        self.shared = self.teams == 1 < exchange.size
        self.heads = [i for i, n in enumerate(shares or ()) if n not in shares[:i]]

    def same(self, where: str, rows: list, key: str, what: str, why: str) -> None:
        """Raise if a number is not the same on all ranks."""
        values = [row[key] for row in rows]
        if len(set(values)) == 1:
            return
        groups = self.exchange.split(values).items()
        said = ", ".join(f"{value} on {names(ranks)}" for value, ranks in groups)
        raise GuardError(f"{where}: {what}: {said}. {why}")

    def proved(self, where: str, rows: list[dict]) -> bool:
        """Whether samplers deal the samples out, and nothing is left to be seen."""
        self.same(where, rows, "length", "batches in this epoch", LENGTH)
        if all(row["replicas"] >= 0 for row in rows):
            return self._sampler(where, rows)
        if self.teams > 1:
            self._no_sampler(where, rows)
        return False

    def _sampler(self, where: str, rows: list[dict]) -> bool:
        size = self.exchange.size
        for key, what, why in (
            ("replicas", "the sampler's num_replicas differs", SHARES),
            ("samples", "samples in the data set", SHARES),
            ("seed", "the sampler's seed differs", SHARES),
            ("epoch", "the sampler's epoch differs", SHARES),
            ("shuffle", "the sampler's shuffle differs", SHARES),
            ("total", "the samples that the sampler deals out differ", SHARES),
            (
                "dataset",
                "the data sets or subsets are not the same; their digests",
                ORDER,
            ),
        ):
            self.same(where, rows, key, what, why)
        if not self.teams:
            return False
        taken = [row["share"] for row in rows]
        for team in dict.fromkeys(self.shares):
            inside = [i for i, own in enumerate(self.shares) if own == team]
            if len({taken[i] for i in inside}) > 1:
                who = names(self.exchange.ranks[i] for i in inside)
                raise GuardError(
                    f"{where}: {who} of one tensor-parallel model take different "
                    f"shares, {[taken[i] for i in inside]}: they need the same batch. "
                    "Give the sampler the size of the data axis, and the rank in it."
                )
        if self.shared:
            return False
        heads, replicas = [taken[i] for i in self.heads], rows[0]["replicas"]
        if replicas < self.teams or len(set(heads)) < self.teams:
            raise GuardError(
                f"{where}: the sampler makes {replicas} shares, and the "
                f"{size} ranks take the shares {taken}: some samples are trained on "
                "twice. Build it with this group's size and rank."
            )
        if replicas > self.teams and size > 1:
            raise GuardError(f"{where}: {self._too_many(replicas, taken)}")
        return all(row["known"] == 1 for row in rows)

    def _too_many(self, replicas: int, taken: list[int]) -> str:
        said = (
            f"the sampler deals to {replicas}, and the model's {self.exchange.size} "
            f"ranks take the shares {taken}: they never see the others. "
        )
        world = dist.get_world_size() if dist.is_initialized() else 1
        if world > self.exchange.size:
            return said + (
                f"The model is averaged over {names(self.exchange.ranks)} of {world} "
                "only: give DDP the group of all ranks that train it, or the sampler "
                "this group's size, and the rank in it."
            )
        return said + "Build it with this group's size and rank."

    def _no_sampler(self, where: str, rows: list[dict]) -> None:
        prints = [row["dataset"] for row in rows]
        whole = all(row["whole"] == row["known"] == 1 for row in rows)
        if whole and prints[0] not in (0, -1) and len(set(prints)) == 1:
            raise GuardError(
                f"{where}: each of the {self.exchange.size} ranks goes through all "
                f"{rows[0]['samples']} samples: the loader has no DistributedSampler."
            )
