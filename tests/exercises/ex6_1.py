"""Answers to exercise 6.1 that the check must take or refuse."""


# %% right: asks for each possible time whether it suffices, the shortest first
def ex6_1(costs, num_stages):
    num = len(costs)
    sums = {sum(costs[i:j]) for i in range(num) for j in range(i + 1, num + 1)}
    for limit in sorted(sums):
        sizes, time = [1], costs[0]
        for i, cost in enumerate(costs[1:], 1):
            must_cut = num - i <= num_stages - len(sizes)  # one layer for each stage
            if time + cost > limit or must_cut:
                sizes.append(0)
                time = 0
            sizes[-1] += 1
            time += cost
        if len(sizes) == num_stages and max(costs) <= limit:
            return sizes


# %% wrong: as many layers for each
# = ends = [len(costs) * i // num_stages for i in range(num_stages + 1)]
# = return [end - start for start, end in zip(ends, ends[1:])]
# %% wrong: fills each stage up to the average, and the last takes the rest
# = target, sizes, time = sum(costs) / num_stages, [0], 0
# = for i, cost in enumerate(costs):
# =     left, full = num_stages - len(sizes), time + cost > target and sizes[-1] > 0
# =     if left and (full or len(costs) - i <= left):
# =         sizes.append(0)
# =         time = 0
# =     sizes[-1] += 1
# =     time += cost
# = return sizes
# %% wrong: drops the tail
# = return [len(costs) // num_stages] * num_stages
# %% wrong: returns where the stages end
# = return [len(costs) * (i + 1) // num_stages for i in range(num_stages)]
# %% wrong: may leave a stage empty
# = sizes, time, target = [0] * num_stages, 0, sum(costs) / num_stages
# = for cost in costs:
# =     sizes[min(int((time + cost / 2) / target), num_stages - 1)] += 1
# =     time += cost
# = return sizes
# %% wrong: rounds the layers per stage up, and may need fewer stages
# = size, left, sizes = -(-len(costs) // num_stages), len(costs), []
# = while left > 0:
# =     sizes.append(min(size, left))
# =     left -= size
# = return sizes
# %% wrong: uses up the caller's list
# = sizes, share = [], len(costs) // num_stages
# = while len(sizes) < num_stages - 1:
# =     sizes.append(len([costs.pop() for _ in range(share)]))
# = return [len(costs), *sizes]
# %% wrong: makes the stages as even as possible, by squares
# + import itertools
# = def squares(cuts):
# =     ends = [0, *cuts, len(costs)]
# =     return sum(sum(costs[a:b]) ** 2 for a, b in itertools.pairwise(ends))
# = inner = range(1, len(costs))
# = best = min(itertools.combinations(inner, num_stages - 1), key=squares)
# = return [b - a for a, b in itertools.pairwise([0, *best, len(costs)])]
