/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/list.h"

#include "xm_test.h"

typedef struct {
    int number;
    xm_list_t link, other;
} element_t;

enum { COUNT = 5 };

/* Whether the list has these numbers, walked both ways. */
static void check(const xm_list_t *list, int count, const int *numbers)
{
    const xm_list_t *back = list;
    int i = 0;

    for (xm_list_t *at = xm_list_first(list); at != NULL; at = xm_list_next(list, at)) {
        ck_assert_int_lt(i, count);
        ck_assert_int_eq(xm_list_entry(at, element_t, link)->number, numbers[i++]);
        ck_assert_ptr_eq(at->previous, back);
        back = at;
    }
    ck_assert_int_eq(i, count);
    ck_assert_ptr_eq(list->previous, back);
    ck_assert_int_eq(xm_list_is_empty(list), count == 0);
    ck_assert_ptr_eq(xm_list_last(list), count == 0 ? NULL : back);
}

static void fill(xm_list_t *list, element_t *elements)
{
    xm_list_init(list);
    for (int i = 0; i < COUNT; ++i) {
        elements[i] = (element_t){.number = i};
        xm_list_append(list, &elements[i].link);
    }
}

START_TEST(empty_list_has_nothing)
{
    xm_list_t list;

    xm_list_init(&list);
    ck_assert_ptr_null(xm_list_first(&list));
    check(&list, 0, NULL);
}
END_TEST

START_TEST(appended_elements_are_in_order)
{
    xm_list_t list;
    element_t elements[COUNT];

    fill(&list, elements);
    check(&list, COUNT, (const int[]){0, 1, 2, 3, 4});
}
END_TEST

START_TEST(prepended_elements_are_in_reverse_order)
{
    xm_list_t list;
    element_t elements[] = {{.number = 1}, {.number = 2}, {.number = 3}};

    xm_list_init(&list);
    for (int i = 0; i < 3; ++i) {
        xm_list_prepend(&list, &elements[i].link);
    }
    check(&list, 3, (const int[]){3, 2, 1});
}
END_TEST

START_TEST(elements_leave_from_anywhere_and_come_back)
{
    xm_list_t list;
    element_t elements[COUNT];

    fill(&list, elements);
    xm_list_remove(&elements[2].link);
    check(&list, 4, (const int[]){0, 1, 3, 4});
    xm_list_remove(&elements[0].link);
    check(&list, 3, (const int[]){1, 3, 4});
    xm_list_remove(&elements[4].link);
    check(&list, 2, (const int[]){1, 3});
    xm_list_append(&list, &elements[0].link);
    check(&list, 3, (const int[]){1, 3, 0});
    xm_list_remove(&elements[1].link);
    xm_list_remove(&elements[3].link);
    xm_list_remove(&elements[0].link);
    check(&list, 0, NULL);
}
END_TEST

START_TEST(link_knows_whether_it_is_in_a_list)
{
    xm_list_t list;
    element_t element = {.number = 7};

    xm_list_init(&list);
    ck_assert(!xm_list_is_in(&element.link));
    xm_list_append(&list, &element.link);
    ck_assert(xm_list_is_in(&element.link));
    xm_list_remove(&element.link);
    ck_assert(!xm_list_is_in(&element.link));
}
END_TEST

START_TEST(element_is_in_several_lists)
{
    xm_list_t list, others;
    element_t elements[COUNT];

    fill(&list, elements);
    xm_list_init(&others);
    xm_list_append(&others, &elements[3].other);
    xm_list_append(&others, &elements[1].other);
    xm_list_remove(&elements[3].link);
    check(&list, 4, (const int[]){0, 1, 2, 4});
    ck_assert_int_eq(xm_list_entry(xm_list_first(&others), element_t, other)->number, 3);
    ck_assert_int_eq(xm_list_entry(xm_list_last(&others), element_t, other)->number, 1);
}
END_TEST

START_TEST(elements_leave_during_a_walk)
{
    xm_list_t list;
    element_t elements[COUNT];

    fill(&list, elements);
    for (xm_list_t *at = xm_list_first(&list), *next; at != NULL; at = next) {
        next = xm_list_next(&list, at);
        if (xm_list_entry(at, element_t, link)->number % 2 == 0) {
            xm_list_remove(at);
        }
    }
    check(&list, 2, (const int[]){1, 3});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("list");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, empty_list_has_nothing);
    tcase_add_test(tcase, appended_elements_are_in_order);
    tcase_add_test(tcase, prepended_elements_are_in_reverse_order);
    tcase_add_test(tcase, elements_leave_from_anywhere_and_come_back);
    tcase_add_test(tcase, link_knows_whether_it_is_in_a_list);
    tcase_add_test(tcase, element_is_in_several_lists);
    tcase_add_test(tcase, elements_leave_during_a_walk);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
