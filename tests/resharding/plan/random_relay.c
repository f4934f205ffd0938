#include "tests/resharding/plan/random_relay.h"

#include "xm_test.h"

/* Puts a transfer in at a place; those behind it move up. */
static void insert(xm_draft_t *draft, const xm_transfer_t *transfer, int64_t at)
{
    ck_assert_xm_ok(xm_draft_append(draft, transfer, NULL));
    for (int64_t i = draft->transfer_count - 1; i > at; --i) {
        draft->transfers[i] = draft->transfers[i - 1];
        draft->transfers[i].parent += draft->transfers[i].parent >= at;
    }
    draft->transfers[at] = *transfer;
}

/* Splits a route at an entry: what hangs on it goes to `branch`, the rest to `stem`. */
static void split_route(xm_draft_t *draft, int route, int entry, int *stem, int *branch)
{
    xm_route_t whole = draft->routes[route];
    int count[2] = {0, 0}, ranks[2][64], parents[2][64], side[64], place[64];

    ck_assert_int_le(whole.count, 64);
    for (int i = 0; i < whole.count; ++i) {
        int parent = whole.parents[i], s;

        s = side[i] = i == entry || (parent >= 0 && side[parent] == 1);
        place[i] = count[s];
        ranks[s][count[s]] = whole.ranks[i];
        parents[s][count[s]++] = i == entry || parent < 0 ? -1 : place[parent];
    }
    ck_assert_xm_ok(xm_draft_route(draft, count[0], ranks[0], parents[0], stem));
    ck_assert_xm_ok(xm_draft_route(draft, count[1], ranks[1], parents[1], branch));
}

static bool take_branch(random_t *random, xm_draft_t *draft, int64_t index)
{
    xm_transfer_t taken = draft->transfers[index];
    xm_route_t route = draft->routes[taken.route];
    int entry = random_int(random, 0, route.count - 1);
    int64_t place = index + 1, end = taken.end;
    bool has_relays = false;

    for (int64_t i = index + 1; i < draft->transfer_count; ++i) {
        has_relays = has_relays || draft->transfers[i].parent == index;
    }
    if (route.parents[entry] < 0 || has_relays) {
        return false;
    }
    split_route(draft, taken.route, entry, &draft->transfers[index].route, &taken.route);
    taken.sender = route.ranks[route.parents[entry]];
    taken.parent = index;
    place += (int64_t)(xm_random_next(random) % (uint64_t)(draft->transfer_count - index));
    if (taken.end - taken.first > 1 && random_int(random, 0, 1) == 1) {
        taken.end = taken.first + 1 +
                    (int64_t)(xm_random_next(random) %
                              (uint64_t)(draft->transfers[index].end - taken.first - 1));
        insert(draft, &taken, place);
        taken.first = taken.end;
        taken.end = end;
    }
    insert(draft, &taken, place);
    return true;
}

int random_relay(random_t *random, xm_plan_t *plan)
{
    xm_draft_t *draft = &plan->draft;
    int taken = 0;

    for (int i = 0; draft->transfer_count > 0 && i < 12; ++i) {
        int64_t index = (int64_t)(xm_random_next(random) % (uint64_t)draft->transfer_count);

        taken += take_branch(random, draft, index);
    }
    free(draft->first_hop);
    ck_assert_xm_ok(xm_draft_number_hops(draft));
    ck_assert_xm_ok(xm_plan_verify(plan));
    return taken;
}

void random_trees(random_t *random, xm_plan_t *plan)
{
    for (int64_t t = 0; t < plan->draft.transfer_count; ++t) {
        xm_transfer_t *transfer = &plan->draft.transfers[t];
        xm_route_t route = plan->draft.routes[transfer->route];
        int ranks[64], parents[64];

        ck_assert_int_le(route.count, 64);
        memcpy(ranks, route.ranks, (size_t)route.count * sizeof(*ranks));
        for (int i = 0; i < route.count; ++i) {
            int other = random_int(random, i, route.count - 1), swap = ranks[i];

            ranks[i] = ranks[other];
            ranks[other] = swap;
            parents[i] = random_int(random, -1, i - 1);
        }
        ck_assert_xm_ok(
            xm_draft_route(&plan->draft, route.count, ranks, parents, &transfer->route));
    }
    ck_assert_xm_ok(xm_plan_verify(plan));
}

void random_chunks(random_t *random, xm_plan_t *plan, int most)
{
    for (int64_t t = 0; t < plan->task_count; ++t) {
        int64_t chunks = random_int(random, 1, most);

        plan->draft.chunk_elements[t] = (plan->tasks[t].elements + chunks - 1) / chunks;
    }
}
