/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/plan/random_relay.h"

#include "tests/resharding/plan/plan_mutation.h"
#include "xm_test.h"

/* Puts a transfer in at a place; those behind it move up. */
static void insert(xm_builder_t *builder, const xm_transfer_t *transfer, int64_t at)
{
    ck_assert_xm_ok(xm_builder_append(builder, transfer, NULL));
    for (int64_t i = builder->transfer_count - 1; i > at; --i) {
        builder->transfers[i] = builder->transfers[i - 1];
        builder->transfers[i].parent += builder->transfers[i].parent >= at;
    }
    builder->transfers[at] = *transfer;
}

/* Splits a route at an entry: what hangs on it goes to `branch`, the rest to `stem`. */
static void split_route(xm_builder_t *builder, int route, int entry, int *stem, int *branch)
{
    xm_route_t whole = builder->routes[route];
    int count[2] = {0, 0}, ranks[2][64], parents[2][64], side[64], place[64];

    ck_assert_int_le(whole.count, 64);
    for (int i = 0; i < whole.count; ++i) {
        int parent = whole.parents[i], s;

        s = side[i] = i == entry || (parent >= 0 && side[parent] == 1);
        place[i] = count[s];
        ranks[s][count[s]] = whole.ranks[i];
        parents[s][count[s]++] = i == entry || parent < 0 ? -1 : place[parent];
    }
    ck_assert_xm_ok(xm_builder_route(builder, count[0], ranks[0], parents[0], stem));
    ck_assert_xm_ok(xm_builder_route(builder, count[1], ranks[1], parents[1], branch));
}

static bool take_branch(random_t *random, xm_builder_t *builder, int64_t index)
{
    xm_transfer_t taken = builder->transfers[index];
    xm_route_t route = builder->routes[taken.route];
    int entry = random_int(random, 0, route.count - 1);
    int64_t place = index + 1, end = taken.end;
    bool has_relays = false;

    for (int64_t i = index + 1; i < builder->transfer_count; ++i) {
        has_relays = has_relays || builder->transfers[i].parent == index;
    }
    if (route.parents[entry] < 0 || has_relays) {
        return false;
    }
    split_route(builder, taken.route, entry, &builder->transfers[index].route, &taken.route);
    taken.sender = route.ranks[route.parents[entry]];
    taken.parent = index;
    place += (int64_t)(xm_random_next(random) % (uint64_t)(builder->transfer_count - index));
    if (taken.end - taken.first > 1 && random_int(random, 0, 1) == 1) {
        taken.end = taken.first + 1 +
                    (int64_t)(xm_random_next(random) %
                              (uint64_t)(builder->transfers[index].end - taken.first - 1));
        insert(builder, &taken, place);
        taken.first = taken.end;
        taken.end = end;
    }
    insert(builder, &taken, place);
    return true;
}

int random_relay(random_t *random, xm_plan_t *plan)
{
    xm_builder_t *builder = &plan->builder;
    int taken = 0;

    for (int i = 0; builder->transfer_count > 0 && i < 12; ++i) {
        int64_t index = (int64_t)(xm_random_next(random) % (uint64_t)builder->transfer_count);

        taken += take_branch(random, builder, index);
    }
    free(builder->first_hop);
    ck_assert_xm_ok(xm_builder_number_hops(builder));
    ck_assert_xm_ok(xm_plan_verify(plan));
    return taken;
}

void random_trees(random_t *random, xm_plan_t *plan)
{
    for (int64_t t = 0; t < plan->builder.transfer_count; ++t) {
        xm_transfer_t *transfer = &plan->builder.transfers[t];
        xm_route_t route = plan->builder.routes[transfer->route];
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
            xm_builder_route(&plan->builder, route.count, ranks, parents, &transfer->route));
    }
    ck_assert_xm_ok(xm_plan_verify(plan));
}

/* Feeds an entry of the transfer's route by way of another rank. */
static void feed_through(xm_plan_t *plan, xm_transfer_t *transfer, int entry, int rank)
{
    xm_route_t route = plan->builder.routes[transfer->route];
    int ranks[64], parents[64];

    ck_assert_int_lt(route.count, 64);
    for (int i = 0; i < route.count; ++i) {
        int place = i + (i >= entry), parent = route.parents[i];

        ranks[place] = route.ranks[i];
        parents[place] = i == entry ? entry : parent + (parent >= entry);
    }
    ranks[entry] = rank;
    parents[entry] = route.parents[entry];
    ck_assert_xm_ok(
        xm_builder_route(&plan->builder, route.count + 1, ranks, parents, &transfer->route));
}

int random_forwards(random_t *random, xm_plan_t *plan)
{
    xm_builder_t *builder = &plan->builder;
    int added = 0;

    for (int i = 0; builder->transfer_count > 0 && i < 40; ++i) {
        xm_transfer_t *transfer =
            &builder->transfers[xm_random_below(random, (uint64_t)builder->transfer_count)];
        const xm_route_t *route = &builder->routes[transfer->route];
        int rank = random_int(random, 0, plan->ranks - 1);
        bool stranger = rank != transfer->sender && !plan_needs(plan, transfer->task, rank) &&
                        !xm_transfer_is_copy(transfer, route);

        for (int k = 0; k < route->count; ++k) {
            stranger = stranger && route->ranks[k] != rank;
        }
        if (stranger) {
            feed_through(plan, transfer, random_int(random, 0, route->count - 1), rank);
            ++added;
        }
    }
    free(builder->first_hop);
    ck_assert_xm_ok(xm_builder_number_hops(builder));
    ck_assert_xm_ok(xm_plan_verify(plan));
    return added;
}

void random_chunks(random_t *random, xm_plan_t *plan, int most)
{
    for (int64_t t = 0; t < plan->task_count; ++t) {
        int64_t chunks = random_int(random, 1, most);

        plan->builder.chunk_elements[t] = (plan->tasks[t].elements + chunks - 1) / chunks;
    }
}
